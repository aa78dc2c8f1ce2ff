"""Writes the programs of stages: splits each stage's own step, and writes the halves as
functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo

from hloom.passes.analysis.cost import seconds
from hloom.passes.analysis.program import Program as ProgramIR
from hloom.passes.analysis.reach import reached
from hloom.passes.framework.tables import Described
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.build import typed, zeros
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.erase import erase
from hloom.passes.ir.outline import private_function
from hloom.passes.ir.values import shape_of
from hloom.passes.recompute.plan import apply_plan, plan_cheap
from hloom_steps.split.boundary import Marks
from hloom_steps.split.choose import MIN_BYTES, Step
from hloom_steps.split.copies import copy_ops
from hloom_steps.split.plan import SplitPlan, residual_names
from hloom_steps.split.rewrite import (
    FORWARD,
    OF_WEIGHTS,
    PartOfStep,
    descriptions,
    function_of,
    parts_of,
)
from hloom_steps.stages.balance import StageCut
from hloom_steps.stages.joint import Joint
from hloom_steps.stages.programs import (
    Batch,
    Cotangent,
    Crossing,
    Direction,
    Gradient,
    Parameter,
    Result,
    Source,
    StageOutput,
    StageProgram,
    StagePrograms,
    StageValue,
)
from hloom_steps.stages.rows import RowReader, concatenated

_LeafSource = Parameter | Batch | Cotangent

_SHARDINGS = frozenset({"mhlo.sharding", "sdy.sharding"})
"""Attributes of an argument with its sharding."""


def stages_of(cut: StageCut, target: Target, *, weights: bool, remat: bool) -> StagePrograms:
    """Returns the programs of a cut. Raises SplitError.

    Args:
      weights: whether gradients of parameters have a program of their own, where earlier stages
        wait for results of the backward program.
      remat: whether `remat` plans each stage before the split.
    """
    steps = [_StageStep(cut, stage) for stage in range(cut.count)]
    writer = _Writer(cut, target)
    for step in steps:
        writer.add(step, weights=weights, remat=remat)
    return writer.stages()


class _StageStep:
    """The part of a step that a stage runs, with the values that it reads and returns."""

    def __init__(self, cut: StageCut, stage: int) -> None:
        self._cut, self.number = cut, stage
        self._flow, self._joint = cut.flow, cut.flow.joint
        self._program = self._joint.program
        self.crossing = [v for v in cut.crossing if cut.maker(v) == stage]
        """The values that it gives to other stages."""
        self.outputs = [
            number
            for number, value in enumerate(self._joint.returned[: self._joint.outputs])
            if self._place(value, None) == stage
        ]
        """The numbers of the step's outputs that it gives."""
        terms: dict[Parameter, list[int]] = {}
        values = self._joint.returned[self._joint.outputs :]
        for parameter, value in zip(self._joint.terms, values, strict=True):
            if self._place(value, parameter) == stage:
                terms.setdefault(parameter, []).append(value)
        self.terms = terms
        """By parameter the terms of its gradient that it gives, as values."""
        self.positions, self.read = self._needed()

    def _place(self, value: int, parameter: Parameter | None) -> int:
        """Returns the stage that returns a result; if every stage can compute it, the last one, or
        the first that holds the parameter."""
        stage = self._cut.maker(value)
        if stage is not None:
            return stage
        if parameter is None:
            return self._cut.count - 1
        holders = [
            self._cut.stages[node]
            for source, nodes in self._flow.holders.items()
            if isinstance(source, Parameter) and source.leaf == parameter.leaf
            for node in nodes
        ]
        return min(holders, default=0)

    def is_received(self, value: int) -> bool:
        """Whether another stage computes a value for this one."""
        stage = self._cut.maker(value)
        return stage not in (None, self.number) and not self._cut.makes_again(value, self.number)

    @property
    def given(self) -> list[int]:
        """Returns all values that the stage returns, possibly with repetitions."""
        returned = self._joint.returned
        outputs = [returned[number] for number in self.outputs]
        return [*outputs, *self.crossing, *(v for each in self.terms.values() for v in each)]

    def _needed(self) -> tuple[list[int], list[int]]:
        """Returns the positions of its operations, in order, and the values that they read from
        other stages."""
        program, read = self._program, set[int]()

        def made_of(value: int) -> Iterable[int]:
            if self.is_received(value) or self.leaf(value) is not None:
                read.add(value)
                return ()
            node = self._flow.node_of.get(value)
            if node is not None:
                return self._flow.reads(node)
            return program.operands[program.producers[value]]

        made = reached(self.given, made_of) - read
        return sorted({program.producers[value] for value in made}), sorted(read)

    def leaf(self, value: int) -> _LeafSource | None:
        """Returns the step's argument, or the rows of a parameter, that a value is; else None."""
        if value < len(self._program.block.arguments):
            source = self._joint.signature.source(value)
            assert not isinstance(source, StageValue)
            return source
        return self._joint.rows.get(value)

    def is_backward(self, value: int) -> bool:
        """Whether a value of another stage arrives only after this stage's forward program: it
        depends on a cotangent, or comes from a later stage."""
        stage = self._cut.maker(value)
        assert stage is not None
        return self._joint.late[value] or stage > self.number


@dataclass(frozen=True)
class _Module:
    """The step of a stage as a module of its own.

    Attributes:
      module: the module; its main has the arguments and results listed here.
      marks: its marked arguments and results.
      sources: the source of each argument; for a value of another stage its number in the joint
        step.
      results: the kind of each result, likewise.
    """

    module: ir.Module
    marks: Marks
    sources: tuple[_LeafSource | int, ...]
    results: tuple[Gradient | StageOutput | int, ...]


def _alone(step: _StageStep, cut: StageCut, *, weights: bool) -> _Module:
    """Writes the step of a stage as a module."""
    joint = cut.flow.joint
    program = joint.program
    module = clone_module(joint.code)
    old = walk.entry_function(module)
    name = ir.StringAttr(old.attributes["sym_name"]).value
    erase(old)
    by_source: dict[_LeafSource | int, list[int]] = {}
    for value in step.read:
        leaf = step.leaf(value)
        by_source.setdefault(value if leaf is None else leaf, []).append(value)
    sources = tuple(by_source)
    results: list[Gradient | StageOutput | int] = [StageOutput(number) for number in step.outputs]
    results += step.crossing
    results += map(Gradient, step.terms)
    with module.context, ir.Location.unknown():
        values = [program.values[by_source[source][0]] for source in sources]
        given = [joint.returned[number] for number in step.outputs] + step.crossing
        types = [program.values[value].type for value in given]
        types += [program.values[terms[0]].type for terms in step.terms.values()]
        body = private_function(module.body, name, [value.type for value in values], types)
        function = body.owner.operation
        function.attributes["sym_visibility"] = ir.StringAttr.get("public")
        _keep_shardings(function, sources, joint)
        known: dict[ir.Value, ir.Value] = {}
        for source, argument in zip(sources, body.arguments, strict=True):
            known.update((program.values[value], argument) for value in by_source[source])
        with ir.InsertionPoint(body):
            copy_ops([program.ops[position] for position in step.positions], known)
            made = [known[program.values[value]] for value in given]
            for terms in step.terms.values():
                total, *others = [known[program.values[value]] for value in terms]
                for other in others:
                    total = stablehlo.AddOp(total, other).result
                made.append(total)
            func.ReturnOp(made)
    cotangents = [
        number
        for number, source in enumerate(sources)
        if isinstance(source, Cotangent) or (isinstance(source, int) and step.is_backward(source))
    ]
    late = [
        number
        for number, each in enumerate(results)
        if isinstance(each, Gradient) or (isinstance(each, int) and joint.late[each])
    ]
    of_weights = [number for number in late if isinstance(results[number], Gradient)]
    apart = weights and len(of_weights) < len(late)
    return _Module(
        module, Marks(cotangents, late, of_weights if apart else []), sources, tuple(results)
    )


def _keep_shardings(
    function: ir.Operation, sources: Sequence[_LeafSource | int], joint: Joint
) -> None:
    """Gives arguments that are the step's, or rows of them, the shardings of the step's
    arguments."""
    described = walk.readable_attributes(walk.entry_function(joint.code)).get("arg_attrs")
    if not isinstance(described, ir.ArrayAttr):
        return
    found = []
    for source in sources:
        number = None if isinstance(source, int) else _argument(source, joint)
        known = {} if number is None else walk.named(described[number])
        kept = {name: each for name, each in known.items() if name in _SHARDINGS}
        found.append(ir.DictAttr.get(kept))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(found)


def _argument(source: _LeafSource, joint: Joint) -> int:
    """Returns the number of the step's argument that a source is, or is rows of."""
    if isinstance(source, Cotangent):
        return joint.signature.cotangents[source.number]
    return source.leaf


class _Writer:
    """Writes the functions of stages into a module, with a main that calls them."""

    def __init__(self, cut: StageCut, target: Target) -> None:
        self._cut, self._target = cut, target
        self._joint = cut.flow.joint
        self._code = clone_module(self._joint.code)
        erase(walk.entry_function(self._code))
        names = residual_names([self._joint.program.values[value] for value in cut.crossing])
        self._values: list[Crossing] = []
        self._attributes: list[ir.Attribute] = []
        self._numbers: dict[int, int] = {}
        """By value of the joint step that crosses its number among all values."""
        with self._code.context:
            described = descriptions(self._joint.program, cut.crossing)
        for value, name, attributes in zip(cut.crossing, names, described, strict=True):
            self._numbers[value] = self._add_value(self._joint.program, value, name, attributes)
        self._forward: list[StageProgram] = []
        self._later: list[list[StageProgram]] = []

    def _add_value(
        self, program: ProgramIR, value: int, name: str, attributes: ir.Attribute
    ) -> int:
        size_bytes = program.bytes_of(value)
        described = Described.of(program.values[value], size_bytes)
        self._values.append(Crossing(name, size_bytes, described))
        self._attributes.append(attributes)
        return len(self._values) - 1

    def add(self, step: _StageStep, *, weights: bool, remat: bool) -> None:
        """Writes the functions of a stage."""
        alone = _alone(step, self._cut, weights=weights)
        if remat:
            with self._code.context, ir.Location.unknown():
                apply_plan(plan_cheap(alone.module, self._target, MIN_BYTES))
        plan = Step(alone.module, self._target, alone.marks).cheapest()
        assert plan.boundary is not None
        known = self._known(alone, plan)
        later: list[StageProgram] = []
        for part in parts_of(plan, plan.boundary):
            results: dict[int, list[Result]] = {}
            for number, value in zip(part.numbers, part.given, strict=True):
                results.setdefault(value, []).append(self._result(alone.results[number]))
            for value in part.crossing:
                handed = known[value]
                assert isinstance(handed, StageValue)
                if handed not in results.setdefault(value, []):
                    results[value].append(handed)
            if not results:
                continue
            kind = _KINDS.get(part.name, Direction.BACKWARD)
            program = self._write(plan, part, step.number, kind, known, results)
            if kind is Direction.FORWARD:
                self._forward.append(program)
            else:
                later.append(program)
        self._later.append(later)

    def _known(self, alone: _Module, plan: SplitPlan) -> dict[int, Source]:
        """Returns the sources of a stage's arguments, and of the values between its programs."""
        boundary = plan.boundary
        assert boundary is not None
        program = boundary.halves.program
        known: dict[int, Source] = {
            number: StageValue(self._numbers[source]) if isinstance(source, int) else source
            for number, source in enumerate(alone.sources)
        }
        for part in parts_of(plan, boundary):
            for number, value in zip(part.numbers, part.given, strict=True):
                result = self._result(alone.results[number])
                if isinstance(result, StageValue) and value >= len(alone.sources):
                    known.setdefault(value, result)
        values = [each for each in (*boundary.residuals, *plan.handed) if each not in known]
        names = residual_names([program.values[value] for value in values])
        with self._code.context:
            described = descriptions(program, values)
        for value, name, attributes in zip(values, names, described, strict=True):
            known[value] = StageValue(self._add_value(program, value, name, attributes))
        return known

    def _result(self, result: Gradient | StageOutput | int) -> Result:
        return StageValue(self._numbers[result]) if isinstance(result, int) else result

    def _write(
        self,
        plan: SplitPlan,
        part: PartOfStep,
        stage: int,
        kind: Direction,
        known: dict[int, Source],
        results: dict[int, list[Result]],
    ) -> StageProgram:
        """Writes one function."""
        assert plan.boundary is not None
        program = plan.boundary.halves.program
        read = sorted(set(part.read), key=lambda value: _order(known[value]))
        given = [(value, each) for value, found in results.items() for each in found]
        ops = [program.ops[position] for position in part.positions]
        name = f"stage{stage}_{kind}"
        values = program.values
        with self._code.context, ir.Location.unknown():
            function = function_of(
                self._code.body, name, [values[value] for value in read],
                [values[value] for value, _ in given], ops,
            )  # fmt: skip
            self._describe(function, "arg_attrs", [known[value] for value in read])
            self._describe(function, "res_attrs", [each for _, each in given])
        sizes, speed = program.device.sizes, self._target.speed
        return StageProgram(
            stage, kind, name, tuple(known[value] for value in read),
            tuple(each for _, each in given), tuple(values[value].type for value in read),
            tuple(values[value].type for value, _ in given),
            tuple(map(program.bytes_of, read)),
            sum(seconds(op, speed, sizes) for op in ops),
        )  # fmt: skip

    def _describe(self, function: ir.Operation, of: str, what: Sequence[Source | Result]) -> None:
        if any(isinstance(each, StageValue) for each in what):
            none = ir.DictAttr.get({})
            function.attributes[of] = ir.ArrayAttr.get(
                [self._attributes[e.number] if isinstance(e, StageValue) else none for e in what]
            )

    def stages(self) -> StagePrograms:
        """Returns the programs, with a main that runs them."""
        programs = [*self._forward, *itertools.chain(*reversed(self._later))]
        with self._code.context, ir.Location.unknown():
            _write_main(self._code, self._joint, programs)
        return StagePrograms(self._code, self._cut.count, tuple(programs), tuple(self._values))


_KINDS = {FORWARD: Direction.FORWARD, OF_WEIGHTS: Direction.WEIGHTS}
"""The kind of a program by the name of its half; all others are backward programs."""


def _order(source: Source) -> tuple[int, int, int]:
    """Sorts parameters first, then data, values and cotangents."""
    kind = (Parameter, Batch, StageValue, Cotangent).index(type(source))
    if isinstance(source, Parameter):
        return kind, source.leaf, -1 if source.start is None else source.start
    return kind, source.leaf if isinstance(source, Batch) else source.number, 0


def _write_main(code: ir.Module, joint: Joint, programs: Sequence[StageProgram]) -> None:
    """Writes a main with the arguments and the results of the step that calls the programs."""
    old = walk.entry_function(joint.original)
    type_ = ir.FunctionType(ir.TypeAttr(old.attributes["function_type"]).value)
    main = ir.Operation.create(
        "func.func",
        attributes=walk.attributes(old),
        regions=1,
        ip=ir.InsertionPoint.at_block_begin(code.body),
    )
    body = ir.Block.create_at_start(main.regions[0], type_.inputs)
    made: dict[Source | Result, ir.Value] = {}
    rows = RowReader()
    gradients: dict[int, list[tuple[Parameter, ir.Value]]] = {}
    with ir.InsertionPoint(body):
        for program in programs:
            operands = [_operand(source, body, made, joint, rows) for source in program.reads]
            symbol = ir.FlatSymbolRefAttr.get(program.function)
            results = func.CallOp(list(program.results), symbol, operands).operation.results
            for given, result in zip(program.gives, results, strict=True):
                made.setdefault(given, result)
                if isinstance(given, Gradient):
                    found = gradients.setdefault(given.parameter.leaf, [])
                    found.append((given.parameter, result))
        signature = joint.signature
        returned: dict[int, ir.Value] = {
            number: made[StageOutput(place)] for place, number in enumerate(signature.outputs)
        }
        for number, leaf in zip(signature.gradients, signature.parameters, strict=True):
            returned[number] = _sum(gradients[leaf], type_.results[number])
        func.ReturnOp([returned[number] for number in range(len(type_.results))])


def _operand(
    source: Source,
    body: ir.Block,
    made: dict[Source | Result, ir.Value],
    joint: Joint,
    rows: RowReader,
) -> ir.Value:
    if isinstance(source, StageValue):
        return made[source]
    argument = body.arguments[_argument(source, joint)]
    if not isinstance(source, Parameter) or source.start is None or source.stop is None:
        return argument
    return rows.rows(argument, source.start, source.stop)


def _sum(terms: Sequence[tuple[Parameter, ir.Value]], type_: ir.Type) -> ir.Value:
    """Returns the sum of a gradient's terms, some of which may be rows of it."""
    rows: dict[tuple[int, int], ir.Value] = {}
    whole: ir.Value | None = None
    for parameter, value in terms:
        if parameter.start is None or parameter.stop is None:
            whole = value if whole is None else stablehlo.AddOp(whole, value).result
            continue
        key = parameter.start, parameter.stop
        rows[key] = stablehlo.AddOp(rows[key], value).result if key in rows else value
    for each in _tiled(rows, shape_of(type_)[0]) if rows else ():
        whole = each if whole is None else stablehlo.AddOp(whole, each).result
    assert whole is not None
    return whole


def _tiled(rows: dict[tuple[int, int], ir.Value], length: int) -> Iterator[ir.Value]:
    """Yields values of the whole length whose sum contains all of these rows."""
    waiting = dict(sorted(rows.items()))
    while waiting:
        pieces: list[ir.Value] = []
        at = 0
        for start, stop in list(waiting):
            if start >= at:
                pieces += _padding(waiting[start, stop], start - at)
                pieces.append(waiting.pop((start, stop)))
                at = stop
        pieces += _padding(pieces[-1], length - at)
        yield concatenated(pieces)


def _padding(like: ir.Value, rows: int) -> list[ir.Value]:
    """Returns rows of zeros; an empty list for none."""
    return [zeros(typed(like, [rows, *shape_of(like)[1:]]))] if rows else []
