"""What holds a recomputation back best: nothing, a barrier, or a barrier with a gradient.

    python -m benchmarks.hold_variants        (needs the extra cuda13; no GPU; about 5 minutes)

The module that `remat` makes is rewritten before XLA gets it: its barriers are taken out, or lose
their gradients, or are split; and in the bodies of scans, where it puts none, some are put in.
Writes benchmarks/results/hold_variants_h100.json, which keeps one entry for each version of JAX
it was run with, and hold_variants_h100.md, the same as tables.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from benchmarks.common.h100 import measure, placement
from benchmarks.common.measure import Benchmark, Columns, mebi, section, text
from benchmarks.common.subjects import SUBJECTS
from hloom.passes.analysis.autodiff import has_remat_name
from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import option, print_bytes
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.locations import operation_name, rematerialized

PROGRAMS = ("gpt_unrolled", "gpt_scanned", "resnet")
PLANS: dict[str, Callable[[int], str]] = {
    "level cheap": lambda step_bytes: "remat",
    "half the step": lambda step_bytes: _once(step_bytes // 2),
    "the floor": lambda step_bytes: _once(1),
}
"""By name, the spec of a plan, made from the step memory of the program as it is."""

VARIANTS = {
    "as_it_is": "as `remat` has it",
    "nothing": "no barrier",
    "operands": "operands",
    "gradient": "operands and a gradient",
    "apart": "each operand with the gradient",
}


def _once(budget_bytes: int) -> str:
    """A plan that does not depend on what XLA makes of it, and so not on what holds clones back."""
    return f"remat{{budget={print_bytes(budget_bytes)} compiles=1}}"


_BARRIER = "stablehlo.optimization_barrier"


@dataclasses.dataclass(frozen=True)
class HoldPlan:
    """Where clones start from their operands, in blocks and in the bodies of loops."""

    module: ir.Module
    barriers: tuple[ir.Operation, ...]
    bare: tuple[tuple[ir.Operation, ...], ...]
    """Clones that stand together without a barrier before them."""

    @property
    def empty(self) -> bool:
        return not self.barriers and not self.bare

    def summary(self) -> str:
        return f"{len(self.barriers)} barriers, {len(self.bare)} groups without one"

    def to_json(self) -> dict[str, object]:
        return {"barriers": len(self.barriers), "bare": len(self.bare)}


@dataclasses.dataclass(frozen=True)
class Hold(Pass):
    """Makes every recomputation of `remat` be held back in one way."""

    name: ClassVar[str] = "hold"
    summary: ClassVar[str] = "hold recomputations back in one way"
    example: ClassVar[str] = "hold{by=operands}"

    by: str = option("as_it_is", doc="what holds them back", choices=tuple(VARIANTS))

    def plan(self, module: ir.Module, target: Target) -> HoldPlan:
        if self.by == "as_it_is":
            return HoldPlan(module, (), ())
        inside = [op for op in walk.operations(module.operation) if has_remat_name(op)]
        barriers = tuple(op for op in inside if op.name == _BARRIER)
        bare = [run for block in _loop_bodies(module) for run in _runs_of_clones(block)]
        return HoldPlan(module, barriers, () if self.by == "nothing" else tuple(bare))

    def apply(self, plan: HoldPlan) -> None:
        for barrier in plan.barriers:
            leaves, gradient = _split(list(barrier.operands))
            held = _hold(barrier, leaves, gradient, self.by)
            for old, new in zip(barrier.results, held, strict=True):
                old.replace_all_uses_with(new)
            barrier.erase()
        for clones in plan.bare:
            self._hold_bare(clones)

    def _hold_bare(self, clones: tuple[ir.Operation, ...]) -> None:
        made = {result for clone in clones for result in clone.results}
        read = dict.fromkeys(operand for clone in clones for operand in clone.operands)
        leaves = [value for value in read if value not in made and not _is_constant(value)]
        if not leaves:
            return
        gradient = _youngest_gradient(clones)
        held = _hold(clones[0], leaves, gradient, self.by)
        exchanged = dict(zip([*leaves, *([gradient] if gradient else [])], held, strict=True))
        reader = _next_operation(clones[-1])
        for op in (*clones, reader):
            for number, operand in enumerate(op.operands):
                if operand in exchanged and (op is not reader or operand == gradient):
                    op.operands[number] = exchanged[operand]


def _hold(
    anchor: ir.Operation, leaves: list[ir.Value], gradient: ir.Value | None, by: str
) -> list[ir.Value]:
    """The leaves, and the gradient last where there is one, as they come out of the barriers."""
    rest = [] if gradient is None else [gradient]
    with ir.InsertionPoint(anchor), rematerialized(anchor.location):
        if by == "nothing":
            return [*leaves, *rest]
        if by == "operands":
            return [*stablehlo.OptimizationBarrierOp(leaves).results, *rest]
        if by == "gradient" or gradient is None:
            return list(stablehlo.OptimizationBarrierOp([*leaves, *rest]).results)
        held = []
        for leaf in leaves:
            behind, gradient = stablehlo.OptimizationBarrierOp([leaf, gradient]).results
            held.append(behind)
        return [*held, gradient]


def _split(operands: list[ir.Value]) -> tuple[list[ir.Value], ir.Value | None]:
    """A barrier's leaves, and its gradient, which `remat` puts last."""
    *leaves, last = operands
    if leaves and _is_gradient(last):
        return leaves, last
    return operands, None


def _is_gradient(value: ir.Value) -> bool:
    """Whether the backward pass made the value, other barriers before it or not."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    op = owner.operation
    if op.name == _BARRIER and has_remat_name(op):
        return _is_gradient(op.operands[ir.OpResult(value).result_number])
    return "transpose(" in operation_name(op.location)


def _is_constant(value: ir.Value) -> bool:
    """Whether a value follows from constants alone, which must not pass a barrier."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    return all(_is_constant(operand) for operand in owner.operation.operands)


def _loop_bodies(module: ir.Module) -> Iterator[ir.Block]:
    for op in walk.operations(module.operation):
        if op.name == "stablehlo.while" and has_remat_name(op):
            yield op.regions[1].blocks[0]


def _runs_of_clones(block: ir.Block) -> Iterator[tuple[ir.Operation, ...]]:
    """Clones in a block that stand next to each other, where no barrier stands among them."""
    run: list[ir.Operation] = []
    for view in block.operations:
        op = view.operation
        if has_remat_name(op) and op.name != "stablehlo.while":
            run.append(op)
            continue
        if run and all(clone.name != _BARRIER for clone in run):
            yield tuple(run)
        run = []


def _youngest_gradient(clones: tuple[ir.Operation, ...]) -> ir.Value | None:
    """The gradient, of those the clones' reader reads, that is made last before the clones."""
    first = clones[0]
    reader = _next_operation(clones[-1])
    youngest: ir.Value | None = None
    maker: ir.Operation | None = None
    for operand in reader.operands:
        owner = operand.owner
        if isinstance(owner, ir.Block) or not _is_gradient(operand):
            continue
        made_by = owner.operation
        if made_by.block != first.block or not made_by.is_before_in_block(first):
            continue
        if maker is None or maker.is_before_in_block(made_by):
            youngest, maker = operand, made_by
    return youngest


def _next_operation(op: ir.Operation) -> ir.Operation:
    operations = [view.operation for view in op.block.operations]
    return operations[operations.index(op) + 1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with the JAX that runs this, and writes both files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hold_variants")
    parser.add_argument("--plan", choices=list(PLANS), action="append", help="only this plan")
    chosen = parser.parse_args(arguments)
    sharding = placement()
    rows = []
    with registry.registered(Hold):
        for name in PROGRAMS:
            lowered = SUBJECTS[name].lower(None, sharding)
            off = measure(lowered, "off")
            for plan in chosen.plan or PLANS:
                print(f"measuring: {name}, {plan}", flush=True)
                spec = PLANS[plan](off.step_bytes)
                held = {by: measure(lowered, f"{spec},hold{{by={by}}}") for by in VARIANTS}
                rows.append(
                    {
                        "program": SUBJECTS[name].title,
                        "plan": plan,
                        "off": off.temp_bytes,
                        "held": {by: one.temp_bytes for by, one in held.items()},
                        "summary": held["operands"].summaries["hold"],
                    }
                )
    print(BENCHMARK.write(programs=rows))


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        "program": text("program"),
        "plan": text("plan"),
        "off": mebi("off"),
        **{title: mebi(("held", by)) for by, title in VARIANTS.items()},
    }
    title = f"## jax {version}, Python {entry['python']}"
    return section(title, columns, entry["programs"], names=2)


BENCHMARK = Benchmark(
    "hold_variants_h100",
    "hold_variants",
    "What holds a recomputation back",
    "XLA's temporary memory in MiB, compiled for an H100, of the module that `remat` makes "
    "with its clones held back in different ways; the plan is the same in a row. In the bodies "
    "of scans `remat` puts no barrier: there the columns show what one would do.",
    _tables,
)


if __name__ == "__main__":
    main()
