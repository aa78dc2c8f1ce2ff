"""Which kernel each mark becomes, where, and with which attributes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import MappingProxyType

import pytest
from jax.extend.mlir import ir

from hloom.lowering import lower as lower_module
from hloom.lowering.kernel_calls import Choice, LoweringError, Rewrite, Site
from hloom.lowering.lower import lower
from hloom.lowering.placement import Placement
from hloom.passes.ir.marks import MarkBuilder

pytestmark = pytest.mark.usefixtures("context")

FOUR = Placement.of_one_process("cpu", 4)


DECOMPOSITIONS = """
  func.func private @token() -> tensor<ui32> {
    %0 = stablehlo.constant dense<0> : tensor<ui32>
    return %0 : tensor<ui32>
  }
  func.func private @add_dependency(%t: tensor<ui32>, %x: tensor<2xf32>, %n: tensor<i32>)
      -> (tensor<2xf32>, tensor<i32>) {
    return %x, %n : tensor<2xf32>, tensor<i32>
  }
  func.func private @after_all(%t: tensor<ui32>, %x: tensor<2xf32>) -> tensor<ui32> {
    return %t : tensor<ui32>
  }
  func.func private @barrier(%t: tensor<ui32>, %x: tensor<2xf32>, %n: tensor<i32>)
      -> (tensor<ui32>, tensor<2xf32>) {
    %0 = stablehlo.negate %t : tensor<ui32>
    return %0, %x : tensor<ui32>, tensor<2xf32>
  }
"""

TOKEN = (
    '%t = stablehlo.composite "hloom.token" {decomposition = @token, version = 1 : i32} '
    ": () -> tensor<ui32>"
)
ADD_DEPENDENCY = (
    '%v:2 = stablehlo.composite "hloom.add_dependency" %b, %p, %n '
    "{decomposition = @add_dependency, version = 1 : i32} "
    ": (tensor<ui32>, tensor<2xf32>, tensor<i32>) -> (tensor<2xf32>, tensor<i32>)"
)
AFTER_ALL = (
    '%a = stablehlo.composite "hloom.after_all" %b, %v#0 '
    "{decomposition = @after_all, version = 1 : i32} "
    ": (tensor<ui32>, tensor<2xf32>) -> tensor<ui32>"
)


def barrier(groups: str, shape: str) -> str:
    """A barrier through which %x passes, and that keeps %n."""
    return (
        '%b, %p = stablehlo.composite "hloom.barrier" %t, %x, %n '
        "{decomposition = @barrier, version = 1 : i32, "
        f"composite_attributes = {{channel = 7 : i64, replica_groups = dense<{groups}> : "
        f'tensor<{shape}xi64>, timeout_ms = 2500 : i64, site = "entry of @k in @main"}}}} '
        ": (tensor<ui32>, tensor<2xf32>, tensor<i32>) -> (tensor<ui32>, tensor<2xf32>)"
    )


PAIRS = barrier("[[0, 2], [1, 3]]", "2x2")
ALL_MARKS = "\n".join([TOKEN, PAIRS, ADD_DEPENDENCY, AFTER_ALL])


def module_of(body: str, *, mesh: str = '["x"=4]', axes: str = '"x"') -> ir.Module:
    """A module with the body inside one manual computation over these axes of the mesh."""
    computation = f"""
    %r = sdy.manual_computation(%y, %m) in_shardings=[<@mesh, [{{}}]>, <@mesh, []>]
        out_shardings=[<@mesh, [{{}}]>] manual_axes={{{axes}}}
        (%x: tensor<2xf32>, %n: tensor<i32>) {{
      {body}
      sdy.return %x : tensor<2xf32>
    }} : (tensor<2xf32>, tensor<i32>) -> tensor<2xf32>"""
    return whole_module(computation, mesh)


def whole_module(body: str, mesh: str = '["x"=4]') -> ir.Module:
    """A module whose main function has this body, on values %y and %m, with the result %r."""
    module = ir.Module.parse(f"""
module @m {{
  sdy.mesh @mesh = <{mesh}>
  func.func public @main(%y: tensor<2xf32>, %m: tensor<i32>) -> tensor<2xf32> {{
    {body}
    return %r : tensor<2xf32>
  }}
  {DECOMPOSITIONS}
}}""")
    assert module.operation.verify()
    return module


def custom_calls(module: ir.Module) -> list[str]:
    assert module.operation.verify()
    lines = (line.strip() for line in str(module).splitlines())
    return [line for line in lines if "stablehlo.custom_call" in line]


def test_each_mark_becomes_its_kernel() -> None:
    module = module_of(ALL_MARKS)
    lowered = lower(module, FOUR)
    assert custom_calls(module) == [
        "%1 = stablehlo.custom_call @hloom.token.v1() {api_version = 4 : i32, backend_config = {}, "
        "operand_layouts = [], result_layouts = [dense<> : tensor<0xindex>]} : () -> tensor<ui32>",
        "%2:2 = stablehlo.custom_call @hloom.barrier.v1(%1, %arg2, %arg3) {api_version = 4 : i32, "
        "backend_config = {channel = 7 : i64, devices = array<i64: 0, 1, 2, 3>, "
        "group_size = 2 : i64, replica_groups = array<i64: 0, 2, 1, 3>, "
        'site = "entry of @k in @main", timeout_ms = 2500 : i64}, has_side_effect = true, '
        "operand_layouts = [dense<> : tensor<0xindex>, dense<0> : tensor<1xindex>, dense<> : "
        "tensor<0xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<"
        "output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>, "
        "#stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 1, "
        "operand_tuple_indices = []>], result_layouts = [dense<> : tensor<0xindex>, dense<0> : "
        "tensor<1xindex>]} : (tensor<ui32>, tensor<2xf32>, tensor<i32>) "
        "-> (tensor<ui32>, tensor<2xf32>)",
        "%3:2 = stablehlo.custom_call @hloom.tie.v1(%2#0, %2#1, %arg3) {api_version = 4 : i32, "
        "backend_config = {}, operand_layouts = [dense<> : tensor<0xindex>, dense<0> : "
        "tensor<1xindex>, dense<> : tensor<0xindex>], output_operand_aliases = "
        "[#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 1, "
        "operand_tuple_indices = []>, #stablehlo.output_operand_alias<output_tuple_indices = [1], "
        "operand_index = 2, operand_tuple_indices = []>], result_layouts = [dense<0> : "
        "tensor<1xindex>, dense<> : tensor<0xindex>]} : (tensor<ui32>, tensor<2xf32>, tensor<i32>) "
        "-> (tensor<2xf32>, tensor<i32>)",
        "%4 = stablehlo.custom_call @hloom.after.v1(%2#0, %3#0) {api_version = 4 : i32, "
        "backend_config = {}, operand_layouts = [dense<> : tensor<0xindex>, dense<0> : "
        "tensor<1xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<"
        "output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>], "
        "result_layouts = [dense<> : tensor<0xindex>]} : (tensor<ui32>, tensor<2xf32>) "
        "-> tensor<ui32>",
    ]
    assert "composite" not in str(module)
    assert "func.func private" not in str(module)
    assert lowered.marks == 4
    assert lowered.targets == (
        "hloom.after.v1", "hloom.barrier.v1", "hloom.tie.v1", "hloom.token.v1"
    )  # fmt: skip


def called(module: ir.Module) -> set[str]:
    return {line.split("@")[1].split("(")[0] for line in custom_calls(module)}


TIED_ONLY_BY_THE_TOKEN = {"hloom.token.v1", "hloom.barrier.v1"}
EVERY_KERNEL = TIED_ONLY_BY_THE_TOKEN | {"hloom.tie.v1", "hloom.after.v1"}


def test_where_the_partitioner_is_still_to_come_values_stay_its_own() -> None:
    body = ALL_MARKS.replace("%x", "%y").replace("%n", "%m")
    module = whole_module(f"{body}\n%r = stablehlo.negate %v#0 : tensor<2xf32>")
    lower(module, FOUR)
    assert called(module) == TIED_ONLY_BY_THE_TOKEN
    assert "has_side_effect" not in str(module)


def test_with_one_partition_there_is_no_partitioner() -> None:
    body = "\n".join([TOKEN, barrier("0", "1x1"), ADD_DEPENDENCY, AFTER_ALL])
    body = body.replace("%x", "%y").replace("%n", "%m")
    module = whole_module(f"{body}\n%r = stablehlo.negate %v#0 : tensor<2xf32>")
    lower(module, Placement.of_one_process("cpu", 1))
    assert called(module) == EVERY_KERNEL


@pytest.mark.parametrize(
    ("mesh", "axes", "kernels"),
    [
        ('["x"=2, "y"=2]', '"x", "y"', EVERY_KERNEL),
        ('["x"=4, "y"=1]', '"x"', EVERY_KERNEL),
        ('["x"=2, "y"=2]', '"x"', TIED_ONLY_BY_THE_TOKEN),
    ],
    ids=["all axes", "an axis of size 1", "some axes"],
)
def test_only_a_fully_manual_computation_is_manual(mesh: str, axes: str, kernels: set[str]) -> None:
    module = module_of(ALL_MARKS, mesh=mesh, axes=axes)
    lower(module, FOUR)
    assert called(module) == kernels


def test_manual_computations_inside_one_another_add_up() -> None:
    inner = f"""
      %i = sdy.manual_computation(%x, %n) in_shardings=[<@mesh, [{{}}]>, <@mesh, []>]
          out_shardings=[<@mesh, [{{}}]>] manual_axes={{"y"}}
          (%x1: tensor<2xf32>, %n1: tensor<i32>) {{
        {ALL_MARKS.replace("%x", "%x1").replace("%n", "%n1")}
        sdy.return %x1 : tensor<2xf32>
      }} : (tensor<2xf32>, tensor<i32>) -> tensor<2xf32>"""
    module = module_of(inner, mesh='["x"=2, "y"=2]')
    lower(module, FOUR)
    assert called(module) == EVERY_KERNEL


def test_a_kernel_is_told_which_device_runs_each_partition() -> None:
    module = module_of(ALL_MARKS)
    lower(module, Placement("cpu", (2, 0, 3, 1), (0, 0, 0, 0)))
    assert "devices = array<i64: 2, 0, 3, 1>" in str(module)


def test_padded_groups_go_through() -> None:
    module = module_of(
        "\n".join([TOKEN, barrier("[[0, 1, 2], [3, -1, -1]]", "2x3"), ADD_DEPENDENCY])
    )
    lower(module, FOUR)
    assert "group_size = 3 : i64" in str(module)
    assert "replica_groups = array<i64: 0, 1, 2, 3, -1, -1>" in str(module)


TWO_PROCESSES = Placement("cpu", (0, 1, 0, 1), (0, 0, 1, 1), process=1)


def test_between_processes_a_barrier_is_an_exchange_of_tokens() -> None:
    module = module_of("\n".join([TOKEN, PAIRS, ADD_DEPENDENCY]))
    lowered = lower(module, TWO_PROCESSES)
    assert [line.split(" {")[0] for line in custom_calls(module)] == [
        "%1 = stablehlo.custom_call @hloom.token.v1()",
        "%2 = stablehlo.custom_call @hloom.after.v1(%1, %arg2, %arg3)",
        "%12 = stablehlo.custom_call @hloom.tie.v1(%11, %arg2)",
        "%13:2 = stablehlo.custom_call @hloom.tie.v1(%11, %12, %arg3)",
    ]
    [exchange] = [line for line in str(module).splitlines() if "all_to_all" in line]
    assert "replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>" in exchange
    assert "handle = 7" in exchange
    [decision] = [each for each in lowered.decisions if each.mark == "hloom.barrier"]
    assert str(decision) == (
        "hloom.barrier -> rewrite: an exchange of tokens, between processes, that waits as long as "
        "XLA's collectives do"
    )


def test_between_processes_nobody_waits_for_itself() -> None:
    module = module_of("\n".join([TOKEN, barrier("[[0], [1], [2], [3]]", "4x1"), ADD_DEPENDENCY]))
    lower(module, TWO_PROCESSES)
    assert called(module) == EVERY_KERNEL - {"hloom.barrier.v1"}
    assert "all_to_all" not in str(module)


@pytest.mark.parametrize("case", ["groups of several sizes", "outside"])
def test_where_there_is_no_exchange_a_barrier_is_its_decomposition(case: str) -> None:
    if case == "outside":
        body = (
            "\n".join([TOKEN, PAIRS, ADD_DEPENDENCY, AFTER_ALL])
            .replace("%x", "%y")
            .replace("%n", "%m")
        )
        module = whole_module(f"{body}\n%r = stablehlo.negate %v#0 : tensor<2xf32>")
    else:
        module = module_of("\n".join([TOKEN, barrier("[[0, 1, 2], [3, -1, -1]]", "2x3")]))
    lowered = lower(module, TWO_PROCESSES)
    assert "stablehlo.negate %1 : tensor<ui32>" in str(module) or (
        "stablehlo.negate %0 : tensor<ui32>" in str(module)
    )
    [decision] = [each for each in lowered.decisions if each.mark == "hloom.barrier"]
    assert decision.became == "decomposition"


def test_every_process_lowers_to_the_same_module() -> None:
    texts = set()
    for process in (0, 1):
        module = module_of(ALL_MARKS)
        lower(module, Placement("cpu", (0, 1, 0, 1), (0, 0, 1, 1), process=process))
        texts.add(str(module))
    assert len(texts) == 1


def test_a_platform_without_a_token_is_refused() -> None:
    with pytest.raises(LoweringError) as caught:
        lower(module_of(ALL_MARKS), Placement.of_one_process("rocm", 4))
    assert str(caught.value) == (
        "hloom.token has no kernel on rocm: its decomposition is a constant, with which XLA would "
        "drop every barrier that hangs on it"
    )


@pytest.mark.parametrize(
    ("groups", "shape", "message"),
    [
        (
            "[[0, 1], [2, 4]]",
            "2x2",
            "hloom.barrier at entry of @k in @main: its replica groups name partition 4, and the "
            "module runs on 4: 0 to 3",
        ),
        (
            "[[0, 1], [2, 1]]",
            "2x2",
            "hloom.barrier at entry of @k in @main: partition 1 is in its replica groups twice",
        ),
    ],
    ids=["unknown", "twice"],
)
def test_groups_that_do_not_fit_are_refused(groups: str, shape: str, message: str) -> None:
    with pytest.raises(LoweringError) as caught:
        lower(module_of("\n".join([TOKEN, barrier(groups, shape)])), FOUR)
    assert str(caught.value) == message


def test_the_marks_that_a_rewrite_leaves_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(site: Site, placement: Placement) -> Choice:
        def build(mark: ir.Operation) -> Sequence[ir.Value]:
            with ir.InsertionPoint(mark):
                return [MarkBuilder(site.module).token(), *mark.operands[1:2]]

        return Rewrite("a test", build)

    table = lower_module.CHOOSERS["cpu"] | {"hloom.barrier": choose}
    monkeypatch.setattr(lower_module, "CHOOSERS", MappingProxyType({"cpu": table}))
    module = module_of(ALL_MARKS)
    lowered = lower(module, FOUR)
    assert [line.split(" {")[0] for line in custom_calls(module)] == [
        "%1 = stablehlo.custom_call @hloom.token.v1()",
        "%2 = stablehlo.custom_call @hloom.token.v1()",
        "%3:2 = stablehlo.custom_call @hloom.tie.v1(%2, %arg2, %arg3)",
        "%4 = stablehlo.custom_call @hloom.after.v1(%2, %3#0)",
    ]
    assert "hloom.barrier -> rewrite: a test" in map(str, lowered.decisions)


def test_the_log_says_what_was_chosen_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="hloom.lowering"):
        lower(module_of(ALL_MARKS), FOUR)
    assert caplog.messages == [
        "m, cpu, 4 partitions in 1 process: 1 x hloom.token -> hloom.token.v1: "
        "a value that XLA cannot know",
        "m, cpu, 4 partitions in 1 process: 1 x hloom.barrier -> hloom.barrier.v1: "
        "a rendezvous of the devices of this process",
        "m, cpu, 4 partitions in 1 process: 1 x hloom.add_dependency -> hloom.tie.v1: "
        "values keep their buffers",
        "m, cpu, 4 partitions in 1 process: 1 x hloom.after_all -> hloom.after.v1: "
        "the token keeps its buffer",
    ]


def test_a_module_without_marks_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="hloom.lowering"):
        lowered = lower(whole_module("%r = stablehlo.negate %y : tensor<2xf32>"), FOUR)
    assert not caplog.messages
    assert lowered.targets == ()
