"""`barriers` on random blocks: what comes out keeps the rules, whatever the pass decided."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.devices.barrier_rules import Rules

from hloom._jax.modules import make_context
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk

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
