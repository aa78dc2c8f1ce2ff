"""The programs with large loss heads, and the memory that they are to take at most."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from benchmarks.loss_heads.head import HeadSize
from benchmarks.loss_heads.ways import WAYS
from benchmarks.programs.gpt import Gpt

SPECS = (
    "off",
    "one-hot",
    "chunk{chunks=8}",
    "chunk",
    "chunk,remat",
    "chunk,remat{budget=2GiB}",
)
WAY_SPECS = ("off", "one-hot", "chunk")
"""What each way to write a loss is compiled with."""

WAY_SIZE = HeadSize(batch=8, sequence=1024, width=768, vocabulary=32768)


@dataclasses.dataclass(frozen=True)
class HeadSubject:
    """A program.

    Attributes:
      title: what it is, for tables.
      lower: lowers it for the devices of a sharding, or the default one.
      most_mebi: by spec the temporary memory that it is to take at most, in MiB.
      specs: what it is compiled with.
    """

    title: str
    lower: Callable[[Any], Any]
    most_mebi: Mapping[str, int] = dataclasses.field(default_factory=dict)
    specs: tuple[str, ...] = SPECS[:4]


def lowered_way(name: str, size: HeadSize, sharding: Any) -> Any:
    """A way to write a loss, with its gradient."""
    way = WAYS[name]
    return jax.jit(way.step).lower(*way.shapes(size, sharding))


def _head(title: str, size: HeadSize, most_mebi: Mapping[str, int] | None = None) -> HeadSubject:
    def lower(sharding: Any) -> Any:
        return lowered_way("log_softmax", size, sharding)

    return HeadSubject(title, lower, most_mebi or {})


def _plain(vocabulary: int, most_mebi: Mapping[str, int] | None = None) -> HeadSubject:
    size = dataclasses.replace(WAY_SIZE, vocabulary=vocabulary)
    return _head(f"head, D=768, V={vocabulary}", size, most_mebi)


def _llama(title: str, weight_dtype: str, most_mebi: int) -> HeadSubject:
    size = HeadSize(8, 1024, 4096, 128256, weight_dtype=weight_dtype)
    return _head(f"Llama-3's head, {title}", size, {"chunk{chunks=8}": most_mebi})


def _gpt(title: str, policy: str | None, most_mebi: Mapping[str, int]) -> HeadSubject:
    program = Gpt(scanned=True, policy=policy, vocabulary=131072)
    return HeadSubject(
        f"GPT-12 scanned, V=131072, {title}",
        lambda sharding: program.lower(sharding),
        most_mebi,
        SPECS,
    )


SUBJECTS = {
    "head_32768": _plain(32768),
    "head_131072": _plain(131072, {"chunk{chunks=8}": 650, "chunk": 1450}),
    "head_262144": _plain(262144, {"chunk{chunks=8}": 1290, "chunk": 2900}),
    "llama3_bf16": _llama("bf16 weights", "bfloat16", 280),
    "llama3_f32": _llama("float32 weights", "float32", 300),
    "gpt_nothing_saveable": _gpt("`nothing_saveable`", "nothing_saveable", {"chunk": 1060}),
    "gpt_without_checkpoint": _gpt(
        "no checkpoint", None, {"chunk,remat": 4000, "chunk,remat{budget=2GiB}": 2048}
    ),
}
