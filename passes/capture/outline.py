"""Reorders a block by its schedule, and outlines each region into a composite."""

from __future__ import annotations

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from ..ir import marks, walk
from ..ir.clone import remap_operands
from ..ir.ops import facts_of
from .capturable import Rules
from .control_deps import make_wait
from .plan import BlockCapture
from .regions import Region


class Outliner:
    """Edits the blocks of one module; each region gets an unused symbol."""

    def __init__(self, module: ir.Operation, rules: Rules, min_ops: int) -> None:
        self._module = module.regions[0].blocks[0]
        self._rules = rules
        self._min_ops = min_ops
        self._taken = {
            ir.StringAttr(view.operation.attributes["sym_name"]).value
            for view in self._module.operations
            if "sym_name" in view.operation.attributes
        }
        self._has_loops = any(facts_of(op.name).branches for op in walk.operations(module))
        self._next = 0

    def apply(self, plan: BlockCapture) -> None:
        """Reorders a block, adds its control dependencies, and outlines its regions."""
        sorted_ = plan.regions.schedule
        terminator = walk.terminator(sorted_.block)
        for op in sorted_.order():
            op.move_before(terminator)
        for dependency in plan.control_dependencies:
            make_wait(dependency, before=sorted_.gaps[dependency.slot + 1][0])
        ops = [view.operation for view in sorted_.block.operations]
        for region in plan.regions.regions:
            phase = sorted_.phases[region.phase]
            ends = [*sorted_.gaps[region.phase + 1], *_first(sorted_.phases, region.phase + 1)]
            start = ops.index(phase[0])
            end = ops.index(ends[0] if ends else terminator)
            self._outline(ops[start:end], ops[end:], region)

    def _outline(self, ops: list[ir.Operation], later: list[ir.Operation], region: Region) -> None:
        """Moves contiguous operations into a function, and puts a composite in their place."""
        inputs = _inputs(ops)
        outputs = _outputs(ops, later)
        name = self._free_name()
        result_types = [value.type for value in outputs]
        body = self._function(name, [value.type for value in inputs], result_types)
        with ir.InsertionPoint(ops[0]), ops[0].location:
            composite = ir.Operation.create(
                marks.COMPOSITE,
                results=result_types,
                operands=inputs,
                attributes=self._attributes(name, region),
            )
        with ir.InsertionPoint(body), ops[0].location:
            returned = func.ReturnOp(outputs).operation
        for op in ops:
            op.move_before(returned)
        inside: dict[ir.Value, ir.Value] = dict(zip(inputs, body.arguments, strict=True))
        for old, new in zip(outputs, composite.results, strict=True):
            old.replace_all_uses_with(new)
            inside[new] = old
        for op in [*ops, returned]:
            remap_operands(op, inside)

    def _function(self, name: str, inputs: list[ir.Type], outputs: list[ir.Type]) -> ir.Block:
        """The block of a new private function at the module's end."""
        function = ir.Operation.create(
            "func.func",
            attributes={
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs)),
                "sym_name": ir.StringAttr.get(name),
                "sym_visibility": ir.StringAttr.get("private"),
            },
            regions=1,
            ip=ir.InsertionPoint(self._module),
        )
        return ir.Block.create_at_start(function.regions[0], inputs)

    def _free_name(self) -> str:
        while (name := f"{marks.CAPTURE_REGION}_{self._next}") in self._taken:
            self._next += 1
        self._taken.add(name)
        return name

    def _attributes(self, decomposition: str, region: Region) -> dict[str, ir.Attribute]:
        word = ir.IntegerType.get_signless(64)
        attributes: dict[str, ir.Attribute] = {
            "collectives": ir.BoolAttr.get(self._rules.collectives),
            "has_loops": ir.BoolAttr.get(self._has_loops),
            "loops": ir.BoolAttr.get(self._rules.loops),
            "min_ops": ir.IntegerAttr.get(word, self._min_ops),
            "operations": ir.IntegerAttr.get(word, region.operations),
        }
        return {
            "composite_attributes": ir.DictAttr.get(attributes),
            "decomposition": ir.FlatSymbolRefAttr.get(decomposition),
            "name": ir.StringAttr.get(marks.CAPTURE_REGION),
            "version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), marks.VERSION),
        }


def _first(phases: list[list[ir.Operation]], number: int) -> list[ir.Operation]:
    """The first operation of a phase; empty if there is no such phase."""
    return phases[number][:1] if number < len(phases) else []


def _inputs(ops: list[ir.Operation]) -> list[ir.Value]:
    """The values that contiguous operations read from others, each once."""
    read = dict.fromkeys(value for op in ops for value in walk.values_read(op))
    for op in ops:
        for result in op.results:
            read.pop(result, None)
    return list(read)


def _outputs(ops: list[ir.Operation], later: list[ir.Operation]) -> list[ir.Value]:
    """The results of contiguous operations that later ones read, in order."""
    read = {value for op in later for value in walk.values_read(op)}
    return [result for op in ops for result in op.results if result in read]
