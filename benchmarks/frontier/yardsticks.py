"""The devices that frontiers are compiled for, none of them present, and the programs of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS, TPU_SUBJECTS, Subject
from benchmarks.meshes import annotated
from benchmarks.programs.sharded import DATA, MODEL, ShardedDecoder, ShardedMixture
from hloom.targets import deviceless


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """A device that frontiers are compiled for.

    Attributes:
      target: its name in `hloom.targets`.
      device: what it is, for titles.
      results: the name of the files with its results.
      programs: what is compiled for it.
      budgets: how many budgets each program is measured at, about.
      devices: how many of them run a program.
    """

    target: str
    device: str
    results: str
    programs: Mapping[str, Subject]
    budgets: int
    devices: int = 1

    @property
    def name(self) -> str:
        """What a command line names it by."""
        return self.target if self.devices == 1 else f"{self.target}x{self.devices}"

    def placement(self) -> NamedSharding:
        """A sharding of the devices, which leaves arrays whole."""
        return NamedSharding(deviceless.mesh(self.target, self.devices), PartitionSpec())


_SIZES: dict[str, Any] = {"width": 1024, "vocabulary": 8192, "batch": 16, "sequence": 512}


def _mesh(sharding: NamedSharding) -> Mesh:
    """The devices of a sharding, two of them along MODEL."""
    return Mesh(sharding.mesh.devices.reshape(-1, 2), (DATA, MODEL))


def _llama(policy: str | None, sharding: Any, **sizes: int) -> Any:
    return ShardedDecoder(_mesh(sharding), policy, hidden=2816, **_SIZES | sizes).lower()


def _many_words(policy: str | None, sharding: Any) -> Any:
    return _llama(policy, sharding, vocabulary=128256)


def _experts(policy: str | None, sharding: Any) -> Any:
    return ShardedMixture(_mesh(sharding), policy, hidden=2048, **_SIZES).lower()


def _gpt(policy: str | None, sharding: Any) -> Any:
    return annotated.gpt(_mesh(sharding), scanned=False, policy=policy)


SHARDED_SUBJECTS = {
    "llama": Subject("Llama-style, FSDP and tensor parallel, 4 layers", True, _llama),
    "experts": Subject("mixture of experts, 4 layers", True, _experts),
    "gpt": Subject("GPT, 4 layers unrolled, parameters alone have specs", False, _gpt),
}
"""Programs over a mesh of DATA and MODEL: specs on parameters and activations, or on parameters
alone."""

H100 = Yardstick("h100_sxm", "an H100", "frontier_h100", SUBJECTS | HARD_SUBJECTS, 10)
V5P = Yardstick("v5p", "a TPU v5p", "frontier_v5p", TPU_SUBJECTS, 6)

MANY_WORDS = {
    "llama_128256": Subject(
        "Llama-style, FSDP and tensor parallel, 128256 words", True, _many_words
    ),
}
"""A loss that takes more than the layers, also where the words are split."""

H100S = Yardstick(
    "h100_sxm", "8 H100s", "frontier_8_h100s", SHARDED_SUBJECTS | MANY_WORDS, 6, devices=8
)
V5PS = Yardstick(
    "v5p", "a 2x2 slice of TPUs v5p", "frontier_4_v5ps", SHARDED_SUBJECTS, 6, devices=4
)

YARDSTICKS = {each.name: each for each in (H100, V5P, H100S, V5PS)}
