"""`barriers` where text does not show it: its plan and errors, and where barriers go.

`barriers` on random blocks: what comes out keeps the rules, whatever the pass decided.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support import RunPython
from support.devices.barrier_programs import (
    PART,
    in_shard_map,
    kernel,
    marks_in,
    module_of,
    plan_of,
)
from support.devices.barrier_rules import Rules, barrier_kind

from hloom._jax.modules import make_context
from hloom.passes.barriers import Barriers
from hloom.passes.barriers.collect import Role, read_sync_program
from hloom.passes.barriers.placement import SyncNeed, place
from hloom.passes.barriers.requirements import partitions_of_groups
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.options import Duration
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import Statement, facts_of, rows_of
from hloom.passes.framework.target import Target
from hloom.passes.ir import marks, walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.collectives import CollectiveError

# What the plan says.


def test_what_the_plan_says() -> None:
    module = in_shard_map(
        f"%1 = {kernel('entry exit=after groups=[[0,1],[2,3]]', target='k1')}\n"
        f"%2 = {kernel('entry groups=[[0,1],[2,3]]', target='k2', operand='%1')}\n"
        f'%r = "stablehlo.all_gather"(%2) <{{all_gather_dim = 0 : i64, channel_handle = '
        "#stablehlo.channel_handle<handle = 4, type = 1>, replica_groups = "
        "dense<[[0], [1], [2], [3]]> : tensor<4x1xi64>, use_global_device_ids}> : "
        "(tensor<4xf32>) -> tensor<4xf32>"
    )
    plan = plan_of(module, "barriers{timeout=5s}")
    assert plan["summary"] == (
        "2 barriers for 2 kernels (1 need served by another), in one order with 1 collective"
    )
    groups = [[0, 1], [2, 3]]
    [order] = [each for each in Statement.of(plan).tables if each.depths]
    groups = "2 groups of 2: 0-1, 2-3"
    rows = [(depth, *row[:3]) for depth, row in zip(order.depths, order.rows, strict=True)]
    assert rows == [
        (0, "in a shard_map", None, None),
        (1, "entry barrier", groups, 5.0),
        (1, "@k1", None, None),
        (1, "exit and entry barrier", groups, 5.0),
        (1, "@k2", None, None),
        (1, "all gather", None, None),
    ]
    [served] = rows_of(plan, "Needs that something else serves")
    assert served == {"need": "entry of @k2", "served by": "barrier of the exit of @k1"}
    facts = facts_of(plan)
    assert facts["barriers"] == 2
    assert facts["in one order with"] == "1 x @k1, 1 x @k2, 1 x stablehlo.all_gather"
    assert order.rows[2][3].source.line == "train.py:12"
    found = [marks.rendezvous(op) for op in marks_in(module, marks.BARRIER)]
    assert [each.channel for each in found] == [5, 6]
    assert found[0].groups == ((0, 1), (2, 3))
    assert [each.timeout_ms for each in found] == [5000, 5000]
    assert [barrier_kind(op) for op in marks_in(module, marks.BARRIER)] == ["entry", "exit+entry"]


def test_what_an_empty_plan_says() -> None:
    module = in_shard_map("%r = stablehlo.sine %x : tensor<4xf32>")
    plan = plan_of(module)
    assert plan["summary"] == "no kernel that meets other devices, or they are in order already"
    assert (facts_of(plan), plan["tables"]) == ({"barriers": 0}, [])


def test_marks_have_the_name_of_their_kernel_and_a_scope() -> None:
    module = in_shard_map(f"%r = {kernel('entry')}")
    plan_of(module)
    [barrier] = marks_in(module, marks.BARRIER)
    assert str(barrier.location) == 'loc("hloom.barriers/write"("train.py":12:1))'


def test_the_same_module_gives_the_same_bytes_in_every_process(run_python: RunPython) -> None:
    script = """
from support.devices import barrier_programs as t
module = t.in_shard_map("\\n".join(
    f"%{n} = " + t.kernel("entry exit=after groups=[[0,1]]", operand=f"%{n - 1}" if n > 1 else "%x")
    for n in range(1, 9)) + "\\n%r = stablehlo.sine %8 : tensor<4xf32>")
print(t.plan_of(module), module)
"""
    first, second = (run_python(script, PYTHONHASHSEED=seed).stdout for seed in "12")
    assert first == second
    assert "hloom.barrier" in first


# Options.


@given(st.integers(1, 10**9).map(Duration))
def test_a_printed_timeout_parses_back(timeout: Duration) -> None:
    step = Barriers(timeout=timeout)
    assert Pipeline.parse(str(step)).passes == (step,)


# Errors.

RAGGED = """stablehlo.custom_call @ragged_all_to_all(%arg, %arg, %i, %i, %i, %i)
  {api_version = 4 : i32, backend_config = {channel_id = 1 : i64}} : (tensor<16xf32>,
  tensor<16xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<16xf32>
  loc("train.py":12:1)"""


T = "tensor<4xf32>"
ENTRY, AT = f"%r = {kernel('entry')}", 'loc("train.py":12:1)'
CALL = f"%r = func.call @f(%x) : ({T}) -> {T}"


def function(name: str, body: str = ENTRY, *, end: str = "") -> str:
    return f"func.func {name}(%x: {T}) -> {T} {{\n{body}\n{end}return %r : {T}\n}}"


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (
            lambda: in_shard_map(f"%r = {kernel('entri')}"),
            "@k at train.py:12: its attribute hloom.collective wants any of 'entry', 'exit=after' "
            "or 'exit=module', and 'groups=[[0,1],[2,3]]', with spaces between, got 'entri'",
        ),
        (
            lambda: in_shard_map(ENTRY.replace('"entry"', "3 : i32")),
            "@k at train.py:12: its attribute hloom.collective wants a string such as "
            '"entry exit=after", got 3 : i32',
        ),
        (
            lambda: in_shard_map(f"%r = {kernel('entry groups=[[0,4]]')}"),
            "@k at train.py:12 names partition 4 in its groups, and the module has 4: 0 to 3",
        ),
        (
            lambda: module_of(function("public @main")),
            "@k at train.py:12 meets other devices and stands outside jax.shard_map, where there "
            "is no telling which devices run it: call it inside",
        ),
        (
            lambda: in_shard_map(
                f"%1 = stablehlo.constant dense<1.0> : {T}\n"
                "stablehlo.custom_call @k(%1) {has_side_effect = true, "
                f'hloom.collective = "entry"}} : ({T}) -> () {AT}\n%r = stablehlo.sine %x : {T}'
            ),
            "@k at train.py:12 has no result that is a tensor with elements: nothing can be "
            "ordered by it. Give it one, if only for that",
        ),
        (
            lambda: in_shard_map(ENTRY.replace("(%x)", "()").replace(f"({T})", "()")),
            "@k at train.py:12 has no operand that is a tensor with elements",
        ),
        (
            lambda: in_shard_map(
                ENTRY.replace("%r", "%1").replace(f"-> {T}", "-> tensor<?xf32>")
                + f"\n%r = stablehlo.sine %x : {T}"
            ),
            "@k at train.py:12: result of type tensor<?xf32>; only tensors of known shape that "
            "are not quantized can be put in an order",
        ),
        (
            lambda: in_shard_map(
                '%r = stablehlo.composite "user.op" %x {decomposition = @inside} '
                f': ({T}) -> {T} loc("train.py":34:1)',
                function("private @inside"),
            ),
            "@k at train.py:12 stands inside stablehlo.composite at train.py:34, where the order "
            "of the collectives cannot be carried to",
        ),
        (
            lambda: in_shard_map(
                CALL, function("private @f", f"{CALL.replace('%r', '%0')}\n{ENTRY}")
            ),
            "@f calls itself, which the order cannot follow",
        ),
        (
            lambda: in_shard_map(CALL, function("private @f", end="cf.br ^end\n^end:\n")),
            "@f has several blocks, and @k at train.py:12 stands in one",
        ),
        (
            lambda: module_of(function("public @main"), replicas=2),
            "the module has 2 replicas; barriers are for the partitions of one",
        ),
        (
            lambda: module_of(
                "func.func public @main(%arg: tensor<16xf32>, %i: tensor<4xi32>) -> "
                f"tensor<16xf32> {{\n%0 = {RAGGED}\nreturn %0 : tensor<16xf32>\n}}",
                partitions=1,
            ),
            "@ragged_all_to_all at train.py:12 has no replica_groups in its backend_config",
        ),
    ],
)
def test_errors(module: Any, error: str) -> None:
    with pytest.raises(PassError, match=re.escape(error)) as failure:
        plan_of(module())
    assert failure.value.phase == "plan"
    assert isinstance(failure.value.__cause__, CollectiveError)


# Where barriers stand.

ALL = partitions_of_groups(None, 4)

INTERVALS = st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted)


@given(st.lists(INTERVALS, max_size=6))
def test_there_are_as_few_barriers_as_can_be(intervals: list[list[int]]) -> None:
    needs = [
        SyncNeed(number, Role.ENTRY, first=first, last=last, participants=ALL)
        for number, (first, last) in enumerate(intervals)
    ]
    placement = place(needs, [])
    for number, need in enumerate(needs):
        [slot] = [barrier.slot for barrier in placement.barriers if number in barrier.needs]
        assert need.first <= slot <= need.last
    fewest = next(
        count
        for count in range(9)
        if any(
            all(any(first <= slot <= last for slot in slots) for first, last in intervals)
            for slots in itertools.combinations(range(8), count)
        )
    )
    assert len(placement.barriers) == fewest


def test_the_plan_reads_and_does_not_write() -> None:
    module = in_shard_map(f"%r = {kernel('entry exit=after')}")
    before = str(module)
    with module.context, ir.Location.unknown():
        plan = Barriers().plan(clone_module(module), Target())
        json.dumps(plan.to_json())
        Barriers().plan(module, Target())
    assert str(module) == before


# Calls.


def called_twice(depth: int, body: str) -> list[str]:
    """Functions that stay, `@f0` and on, each of which calls the next one twice; the last has the
    body, which makes `%r` of `%x`."""
    call = "func.call @f{n}({x}) : (tensor<4xf32>) -> tensor<4xf32>"
    calls = [
        f"%0 = {call.format(n=n + 1, x='%x')}\n%r = {call.format(n=n + 1, x='%0')}"
        for n in range(depth)
    ]
    return [
        f"func.func private @f{n}(%x: tensor<4xf32>) -> tensor<4xf32> attributes {{no_inline}} {{\n"
        f"{text}\nreturn %r : tensor<4xf32> }}"
        for n, text in enumerate([*calls, body])
    ]


def test_a_function_is_read_once_however_many_calls_lead_to_it() -> None:
    """Twice to the power of 64 ways lead to the kernel."""
    module = in_shard_map(
        "%r = func.call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>",
        *called_twice(64, f"%r = {kernel('entry')}"),
    )
    program = read_sync_program(module, ordered_collectives="all")
    assert len(program.sequences) == 67  # main, the part of each device, 65 functions
    assert plan_of(module)["summary"] == "1 barrier for 1 kernel"


def test_a_function_is_checked_in_and_outside_of_a_shard_map() -> None:
    """The first call is inside of one, and the second is what is wrong."""
    module = module_of(
        f"""func.func public @main(%arg: tensor<16xf32>, %y: tensor<4xf32>)
            -> (tensor<16xf32>, tensor<4xf32>) {{
          %0 = sdy.manual_computation(%arg) in_shardings=[{PART}] out_shardings=[{PART}]
              manual_axes={{"x"}} (%x: tensor<4xf32>) {{
            %2 = func.call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>
            sdy.return %2 : tensor<4xf32>
          }} : (tensor<16xf32>) -> tensor<16xf32>
          %1 = func.call @f0(%y) : (tensor<4xf32>) -> tensor<4xf32>
          return %0, %1 : tensor<16xf32>, tensor<4xf32>
        }}""",
        *called_twice(1, f"%r = {kernel('entry')}"),
    )
    with pytest.raises(CollectiveError, match="stands outside jax.shard_map"):
        read_sync_program(module, ordered_collectives="all")


PARTITIONS = 4

GROUPS = (None, "[[0,1],[2,3]]", "[[0,2]]", "[[0,1,2,3]]", "[[0,1,2]]", "[[1],[2]]")

DENSE_GROUPS = ("[[0, 1, 2, 3]]", "[[0, 1], [2, 3]]", "[[0, 2], [1, 3]]")

ALIAS = (
    "#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, "
    "operand_tuple_indices = []>"
)


@dataclass(frozen=True)
class Step:
    """One operation; operands count back from the value that was made last."""

    kind: str
    operands: tuple[int, int]
    needs: str = ""
    groups: str = DENSE_GROUPS[0]
    in_place: bool = False

    def text(self, number: int) -> str:
        """The operation that makes value `number`."""
        left, right = (f"%v{max(0, number - 1 - back)}" for back in self.operands)
        if self.kind == "sine":
            return f"%v{number} = stablehlo.sine {left} : tensor<4xf32>"
        if self.kind == "add":
            return f"%v{number} = stablehlo.add {left}, {right} : tensor<4xf32>"
        handle = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
        if self.kind == "permute":
            return (
                f'%v{number} = "stablehlo.collective_permute"({left}) <{{{handle}, '
                "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> "
                ": (tensor<4xf32>) -> tensor<4xf32>"
            )
        if self.kind == "all_reduce":
            shape = f"{self.groups.count('[') - 1}x{4 // (self.groups.count('[') - 1)}"
            return f"""%v{number} = "stablehlo.all_reduce"({left}) <{{{handle},
              replica_groups = dense<{self.groups}> : tensor<{shape}xi64>, use_global_device_ids}}>
            ({{
            ^bb0(%a: tensor<f32>, %b: tensor<f32>):
              %sum = stablehlo.add %a, %b : tensor<f32>
              stablehlo.return %sum : tensor<f32>
            }}) : (tensor<4xf32>) -> tensor<4xf32>"""
        alias = f", output_operand_aliases = [{ALIAS}]" if self.in_place else ""
        return (
            f"%v{number} = stablehlo.custom_call @k{number}({left}, {right}) "
            f'{{hloom.collective = "{self.needs}"{alias}}} '
            ": (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>"
        )


NEEDS = st.tuples(
    st.sampled_from(
        ["entry", "exit=after", "exit=module", "entry exit=after", "entry exit=module"]
    ),
    st.sampled_from(GROUPS),
).map(lambda said: said[0] if said[1] is None else f"{said[0]} groups={said[1]}")

OPERANDS = st.tuples(st.integers(0, 5), st.integers(0, 5))

STEPS = st.one_of(
    st.builds(Step, st.sampled_from(["sine", "add", "permute"]), OPERANDS),
    st.builds(Step, st.just("all_reduce"), OPERANDS, groups=st.sampled_from(DENSE_GROUPS)),
    st.builds(
        Step, st.just("kernel"), OPERANDS, NEEDS, in_place=st.sampled_from([False] * 3 + [True])
    ),
)


def program(steps: list[Step]) -> str:
    """A module in which every device runs the steps, and gives what the last two make."""
    lines = "\n".join(step.text(number + 1) for number, step in enumerate(steps))
    one, two = f"%v{len(steps)}", f"%v{max(0, len(steps) - 1)}"
    part = '<@mesh, [{"x"}]>'
    return f"""
module attributes {{mhlo.num_partitions = {PARTITIONS} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"={PARTITIONS}]>
  func.func public @main(%x: tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) {{
    %0:2 = sdy.manual_computation(%x) in_shardings=[{part}] out_shardings=[{part}, {part}]
        manual_axes={{"x"}} (%v0: tensor<4xf32>) {{
      {lines}
      sdy.return {one}, {two} : tensor<4xf32>, tensor<4xf32>
    }} : (tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>)
    return %0#0, %0#1 : tensor<16xf32>, tensor<16xf32>
  }}
}}
"""


def with_barriers(text: str) -> Rules:
    """The rules of the block of a program with barriers."""
    module = ir.Module.parse(text, make_context())
    Pipeline.parse("barriers").run(module, target=Target())
    [computation] = (
        op for op in walk.operations(module.operation) if op.name == "sdy.manual_computation"
    )
    return Rules(module, computation.regions[0].blocks[0], PARTITIONS)


LAST = (0, 0)

FIRST_EXITS_LAST = [
    Step("kernel", LAST, "exit=after groups=[[0,1,2]]"),
    Step("kernel", (1, 1), "entry groups=[[0,2]]"),
    Step("kernel", (1, 1), "entry groups=[[0,2]]"),
]
"""A barrier is there between the first and the last kernel, but not all have left the first."""

WRITES_TO_A_RESULT = [
    Step("kernel", LAST, "exit=after"),
    Step("kernel", LAST, "entry", in_place=True),
    Step("add", (0, 1)),
]
"""The second kernel writes to what the first one gives, and something else reads that as well."""


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=9))
@example(FIRST_EXITS_LAST)
@example(WRITES_TO_A_RESULT)
def test_a_random_block_keeps_the_rules(steps: list[Step]) -> None:
    if any(step.kind == "kernel" for step in steps):
        with_barriers(program(steps)).check()
