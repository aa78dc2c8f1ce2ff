"""The programs that `benchmarks.capture` compiles, by name, for any number of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.programs import adam, lstm, mixture_of_experts, peers, perceptron
from benchmarks.programs.gpt import Gpt


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program to be lowered.

    Attributes:
      title: what it is, for tables.
      lower: lowers it for the devices of a mesh of one axis; its data is spread over them, and
        what it learns lies on each.
      host_calls: how often it calls the host.
      passes: what it cannot do without, as a spec; the empty string for none.
    """

    title: str
    lower: Callable[[Mesh], Any]
    host_calls: int = 0
    passes: str = ""


def _gpt(*, scanned: bool) -> Subject:
    def lower(mesh: Mesh) -> Any:
        model = Gpt(scanned=scanned, layers=4)
        return model.lower(_everywhere(mesh), data_sharding=_spread(mesh, axis=0))

    return Subject(f"GPT, 4 layers {'scanned' if scanned else 'unrolled'}", lower)


def _program(
    title: str,
    program: Callable[[Mesh], Any],
    *,
    data: int,
    data_axis: int = 0,
    host_calls: int = 0,
    passes: str = "",
) -> Subject:
    """A subject whose last `data` arguments are spread along one of their axes."""

    def lower(mesh: Mesh) -> Any:
        function, arguments = program(mesh)
        first_data = len(arguments) - data
        placed = [
            _place(each, _spread(mesh, data_axis) if number >= first_data else _everywhere(mesh))
            for number, each in enumerate(arguments)
        ]
        return jax.jit(function).lower(*placed)

    return Subject(title, lower, host_calls, passes)


def _with_peers(title: str, layer: peers.Layer) -> dict[str, Subject]:
    """Subjects of layers with a kernel of hloom's, one after the other and as a loop."""
    return {
        f"{layer.__name__}_{form}": _program(
            f"{peers.LAYERS} x {title}, {form}",
            partial(peers.program, layer, scanned=form == "scanned"),
            data=1,
            passes="barriers",
        )
        for form in ("unrolled", "scanned")
    }


def _place(tree: Any, sharding: NamedSharding) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def _everywhere(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def _spread(mesh: Mesh, axis: int) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, mesh.axis_names[0]))


def _plain(block: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of `jax.checkpoint`."""
    return block


SUBJECTS = {
    "perceptron": _program("perceptron", lambda _: perceptron.program(), data=2),
    "gpt_unrolled": _gpt(scanned=False),
    "gpt_scanned": _gpt(scanned=True),
    "mixture_of_experts": _program(
        "mixture of experts, 6 layers", lambda _: mixture_of_experts.program(_plain), data=1
    ),
    "lstm": _program(
        "LSTM, 2 layers of 256 steps", lambda _: lstm.program(_plain), data=1, data_axis=1
    ),
    "adam": _program("Adam, 500 tensors", lambda _: adam.program(), data=0),
    "host_is_told": _program(
        "perceptron that tells the host its loss",
        lambda mesh: perceptron.program("tell", mesh),
        data=2,
        host_calls=1,
    ),
    "host_is_asked": _program(
        "perceptron that asks the host for a rate",
        lambda mesh: perceptron.program("ask", mesh),
        data=2,
        host_calls=1,
    ),
    **_with_peers("a ragged exchange", peers.exchange),
    **_with_peers("a ragged exchange and an all-reduce", peers.exchange_and_sum),
    **_with_peers("a kernel between barriers", peers.between_barriers),
}
