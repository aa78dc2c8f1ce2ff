"""What the marks become on CUDA."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest
from jax.extend.mlir import ir
from support.devices.cuda_on_cpu import KERNELS

from hloom import targets
from hloom.lowering import choosers
from hloom.lowering.lower import Lowered, lower
from hloom.lowering.placement import Placement
from hloom.passes.ir import marks
from hloom.passes.ir.build_collectives import Groups
from hloom.runtime import cuda_peers, nvrtc

pytestmark = pytest.mark.usefixtures("context")

H100 = (9, 0)
FOUR = Placement.of_one_process("cuda", 4, H100)


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU of this machine decides anything."""
    monkeypatch.setattr(cuda_peers, "cannot_address", lambda ordinals: None)


CALL = """
  %r = stablehlo.custom_call @ragged_all_to_all(%x, %x, %i, %i, %i, %i) {{api_version = 4 : i32,
    backend_config = {{channel_id = 1 : i64, replica_groups = dense<[[0, 1, 2, 3]]> :
    tensor<1x4xi64>}}}} : (tensor<8x{t}>, tensor<8x{t}>, tensor<4x{i}>, tensor<4x{i}>,
    tensor<4x{i}>, tensor<4x{i}>) -> tensor<8x{t}>
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A lowered module, what was decided, and its custom calls by target."""

    module: ir.Module
    result: Lowered
    calls: dict[str, ir.Operation]

    def why(self, mark: str) -> str:
        """What became of the marks of one kind, and the reason."""
        [decision] = [each for each in self.result.decisions if each.mark == mark]
        return str(decision).partition(" -> ")[2]


def lowered(
    placement: Placement,
    *,
    groups: Groups = ((0, 1, 2, 3),),
    element: str = "f32",
    index: str = "i32",
) -> Outcome:
    """A module with each kind of mark, lowered."""
    call = CALL.format(t=element, i=index)
    module = ir.Module.parse(f"""
module @m {{
  sdy.mesh @mesh = <["x"={placement.partitions}]>
  func.func public @main(%y: tensor<8x{element}>, %j: tensor<4x{index}>) -> tensor<8x{element}> {{
    %o = sdy.manual_computation(%y, %j) in_shardings=[<@mesh, [{{}}]>, <@mesh, [{{}}]>]
        out_shardings=[<@mesh, [{{}}]>] manual_axes={{"x"}}
        (%x: tensor<8x{element}>, %i: tensor<4x{index}>) {{
      {call}
      sdy.return %r : tensor<8x{element}>
    }} : (tensor<8x{element}>, tensor<4x{index}>) -> tensor<8x{element}>
    return %o : tensor<8x{element}>
  }}
}}""")
    [computation] = [
        view.operation
        for view in module.body.operations[1].regions[0].blocks[0].operations
        if view.operation.name == "sdy.manual_computation"
    ]
    [exchange, _] = computation.regions[0].blocks[0].operations
    where = marks.Rendezvous(7, groups, 2500, "entry of @k in @main")
    with ir.InsertionPoint(exchange):
        builder = marks.MarkBuilder(module)
        token = builder.token()
        x = exchange.operands[0]
        token, [x] = builder.barrier(token, [x], [], where, marks.BarrierKind.ENTRY)
        [x] = builder.add_dependency(token, [x])
        token = builder.after_all(token, [x])
        output, token = builder.ragged_all_to_all(
            token, exchange.operation, dataclasses.replace(where, channel=8)
        )
        token = builder.after_all(token, [output])
        [output] = builder.add_dependency(token, [output])
    exchange.results[0].replace_all_uses_with(output)
    exchange.operation.erase()
    result = lower(module, placement)
    assert module.operation.verify()
    calls = {
        ir.StringAttr(view.operation.attributes["call_target_name"]).value: view.operation
        for view in computation.regions[0].blocks[0].operations
        if view.operation.name == "stablehlo.custom_call"
    }
    return Outcome(module, result, calls)


@pytest.mark.h100
def test_marks_become_kernels() -> None:
    found = lowered(FOUR)
    calls = found.calls
    assert found.result.targets == (
        "hloom.barrier.v1",
        "hloom.ragged_all_to_all.v1",
        "hloom.token.v1",
    )
    assert set(calls) == set(found.result.targets)
    config = ir.DictAttr(calls["hloom.barrier.v1"].attributes["backend_config"])
    assert ir.StringAttr(config["image"]).value_bytes == choosers.image("barrier", H100)
    assert str(config["kernel"]) == '"hloom_barrier"'
    assert str(config["replica_groups"]) == "array<i64: 0, 1, 2, 3>"
    aliases = str(calls["hloom.ragged_all_to_all.v1"].attributes["output_operand_aliases"])
    assert re.findall(r"\[(\d)\], operand_index = (\d)", aliases) == [("0", "2"), ("1", "0")]


@pytest.mark.h100
def test_the_same_module_has_the_same_bytes() -> None:
    assert str(lowered(FOUR).module) == str(lowered(FOUR).module)


ALL_REDUCE = "decomposition: an all-reduce of the token: "
XLAS_OWN = "decomposition: XLA's own: "


TWO_PROCESSES = Placement("cuda", (0, 1, 0, 1), (0, 0, 1, 1), 0, H100)


@pytest.mark.h100
@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        (TWO_PROCESSES, "the devices are of several processes"),
        (Placement.of_one_process("cuda", 4), "the devices' compute capability is not known"),
        (Placement.of_one_process("cuda", 4, (2, 0)), "NVRTC "),
    ],
)
def test_what_serves_without_a_kernel(placement: Placement, reason: str) -> None:
    found = lowered(placement)
    assert found.why(marks.BARRIER).startswith(ALL_REDUCE + reason)
    assert found.why(marks.RAGGED_ALL_TO_ALL).startswith(XLAS_OWN + reason)
    assert set(found.calls) == {"hloom.token.v1", "ragged_all_to_all"}


def test_too_many_ranks_for_the_kernel() -> None:
    many = Placement.of_one_process("cuda", 129, H100)
    found = lowered(many, groups=(tuple(range(129)),))
    reason = "groups of 129 devices, the kernel serves 128"
    assert found.why(marks.BARRIER) == ALL_REDUCE + reason


def test_devices_without_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def cannot_address(ordinals: Iterator[int]) -> tuple[int, int]:
        asked.append(tuple(ordinals))
        return 0, 3

    monkeypatch.setattr(cuda_peers, "cannot_address", cannot_address)
    found = lowered(Placement("cuda", (3, 2, 1, 0), (0,) * 4, 0, H100), groups=((0, 3), (1, 2)))
    reason = "device 0 cannot address the memory of device 3"
    assert found.why(marks.BARRIER) == ALL_REDUCE + reason
    assert asked[0] == (3, 0)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> nvrtc.Compiler:
        raise nvrtc.CompilerMissingError("no compiler here\nTried:\n  a\n  b")

    monkeypatch.setattr(nvrtc, "load", load)
    monkeypatch.setattr(choosers.cuda_images, "image", choosers.cuda_images.image.__wrapped__)
    found = lowered(FOUR)
    assert found.why(marks.BARRIER) == ALL_REDUCE + "no compiler here"


@pytest.mark.h100
@pytest.mark.parametrize(
    ("element", "index", "reason"),
    [
        ("i4", "i32", "elements of type i4 share bytes"),
        ("f32", "i16", "offsets and sizes of type i16, the kernel reads 32 or 64 bits"),
    ],
)
def test_values_that_the_kernel_cannot_move(element: str, index: str, reason: str) -> None:
    found = lowered(FOUR, element=element, index=index)
    assert found.why(marks.RAGGED_ALL_TO_ALL) == XLAS_OWN + reason
    assert found.why(marks.BARRIER).startswith("hloom.barrier.v1: ")


@pytest.mark.h100
@pytest.mark.parametrize("element", ["i1", "bf16", "f8E4M3FN", "complex<f32>", "ui64"])
def test_values_that_the_kernel_moves(element: str) -> None:
    found = lowered(FOUR, element=element, index="i64")
    assert found.why(marks.RAGGED_ALL_TO_ALL).startswith("hloom.ragged_all_to_all.v1: ")


def test_targets_tell_their_compute_capability() -> None:
    assert targets.load("h100_sxm").compute_capability == H100
    assert targets.load("cpu").compute_capability is None


def test_the_largest_group_is_what_the_kernels_say() -> None:
    pad = (KERNELS / "pad.cuh").read_text(encoding="utf-8")
    assert f"constexpr unsigned kMaxRanks = {choosers.MOST_RANKS};" in pad
    for name in ("barrier", "ragged_all_to_all"):
        assert f"hloom_{name}(hloom::Site" in (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
