"""Computes the boundary of a step, the values that the backward pass reads of the forward pass, as
a minimum cut.

The backward pass consists of the operations that depend on a marked cotangent. Every other value
that it reads is wanted: saved as a residual, read again where the caller has it, or recomputed from
such values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.budgeted_cut import budgeted_vertex_cut
from hloom.passes.analysis.keep import KeepNetwork
from hloom.passes.analysis.pricing import Pricing
from hloom.passes.analysis.program import FROM_OUTSIDE, Node, Program, has_effects
from hloom.passes.analysis.reach import reached
from hloom.passes.framework.tables import Described
from hloom.passes.framework.text import size
from hloom.passes.ir import walk
from hloom.passes.ir.custom_calls import PLACEMENT, is_python_callback, target_of
from hloom.passes.ir.marks import mark_name
from hloom.passes.ir.op_facts import OpKind

COTANGENT = "hloom.cotangent"
"""Attribute of an argument of the program that is a cotangent, an input of the backward pass."""

GRADIENT = "hloom.gradient"
"""Attribute of a result of the program that the backward pass returns, whatever it depends on."""

WEIGHT_GRADIENT = "hloom.weight_gradient"
"""Attribute of a result of the program that a second backward program returns."""

PRICE_UNITS = 1e12
"""The units of a second in the prices of cuts, which are whole picoseconds."""


class SplitError(ValueError):
    """A program cannot be split; the text says in a line what, where, and the remedy.

    `floor_bytes` is the least number of bytes that can cross, where a bound is below it.
    """

    def __init__(self, text: str, floor_bytes: int | None = None) -> None:
        super().__init__(text)
        self.floor_bytes = floor_bytes


def marked(function: ir.Operation, of: str, name: str) -> tuple[int, ...]:
    """Returns the numbers of a function's arguments, or results, that carry an attribute."""
    described = walk.readable_attributes(function).get(of)
    if not isinstance(described, ir.ArrayAttr):
        return ()
    return tuple(number for number, each in enumerate(described) if name in ir.DictAttr(each))


@dataclass(frozen=True)
class Marks:
    """The marked arguments and results of a step, by number.

    Attributes:
      cotangents: the arguments that are cotangents.
      gradients: the results that the backward pass always returns, those of weights included.
      weights: the results that a second backward program returns.
    """

    cotangents: Sequence[int]
    gradients: Sequence[int]
    weights: Sequence[int]


@dataclass(frozen=True)
class Halves:
    """The operations and results of a program's backward pass.

    Attributes:
      program: the program, one block.
      late: for each value, whether it depends on a cotangent.
      backward: the positions of the operations that depend on a cotangent.
      gradients: the numbers of the results that the backward pass returns.
      weights: the numbers of the results that a second backward program returns.
      wanted: the values of the forward pass that the backward pass reads or returns, in order.
    """

    program: Program
    late: Sequence[bool]
    backward: tuple[int, ...]
    gradients: tuple[int, ...]
    weights: tuple[int, ...]
    wanted: tuple[int, ...]

    @classmethod
    def of(cls, program: Program, marks: Marks) -> Halves:
        """Finds the halves of a program.

        Args:
          program: the whole step.
          marks: its marked arguments and results.

        Raises SplitError where an operation has an effect, which must run once and in order.
        """
        for node in program.root.nodes:
            if (found := _effect_in(node)) is not None:
                raise SplitError(_about_effect(found))
        late = [False] * len(program.sizes)
        for number in marks.cotangents:
            late[number] = True
        last = len(program.ops) - 1
        backward = []
        for position in range(last):
            if any(late[value] for value in program.operands[position]):
                backward.append(position)
                for value in program.results[position]:
                    late[value] = True
        returned = program.root.returned
        gradients = tuple(
            number
            for number, value in enumerate(returned)
            if late[value] or number in marks.gradients
        )
        read = [value for position in backward for value in program.operands[position]]
        read += [returned[number] for number in gradients]
        wanted = tuple(dict.fromkeys(value for value in read if not late[value]))
        return cls(program, late, tuple(backward), gradients, tuple(marks.weights), wanted)

    @property
    def given(self) -> list[int]:
        """Returns the values that the forward pass returns."""
        returned = self.program.root.returned
        return [value for number, value in enumerate(returned) if number not in self.gradients]

    @property
    def results(self) -> list[int]:
        """Returns the values that the backward pass returns."""
        return [self.program.root.returned[number] for number in self.gradients]

    @property
    def of_inputs(self) -> list[int]:
        """Returns the values that the first backward program returns."""
        returned, weights = self.program.root.returned, self.weights
        return [returned[number] for number in self.gradients if number not in weights]

    @property
    def of_weights(self) -> list[int]:
        """Returns the values that the second backward program returns."""
        return [self.program.root.returned[number] for number in self.weights]

    @property
    def argument_count(self) -> int:
        """Returns the number of the step's arguments."""
        return len(self.program.block.arguments)

    def is_callers(self, value: int) -> bool:
        """Whether a value is an argument of the step other than a cotangent."""
        return value < self.argument_count and not self.late[value]


@dataclass(frozen=True)
class Boundary:
    """The values that cross from the forward program to the backward program.

    Attributes:
      residuals: the values that cross, in program order.
      forward: the positions of the operations of the forward program, in order.
      backward: the positions of the operations of the backward program, in order; recomputed ones
        are placed right before their first reader.
    """

    halves: Halves
    residuals: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @classmethod
    def at(cls, halves: Halves, kept: Collection[int]) -> Boundary:
        """Returns the boundary at which these values are saved, and all other wanted ones
        recomputed."""
        program = halves.program
        makers, operands = program.producers, program.operands
        again = _needed(program, halves.wanted, kept=kept)
        read = {value for position in again for value in operands[position]}
        read.update(halves.wanted)
        residuals = tuple(
            value
            for value in sorted(set(kept) & read)
            if makers[value] != FROM_OUTSIDE and makers[value] not in again
        )
        given, results = halves.given, halves.results
        own = set(halves.backward)
        both = again | own
        forward = _needed(program, [*given, *residuals], lambda position: position not in own)
        backward = _needed(program, results, lambda position: position in both)
        return cls(
            halves,
            residuals,
            tuple(sorted(forward)),
            _as_late_as_possible(program, backward, own, results),
        )

    @property
    def bytes(self) -> int:
        """Returns the bytes of the residuals on one device."""
        return sum(map(self.halves.program.bytes_of, self.residuals))

    @property
    def forward_arguments(self) -> list[int]:
        """Returns the arguments that the forward program reads or returns."""
        return self._arguments(self.forward, self.halves.given)

    @property
    def read_again(self) -> list[int]:
        """Returns the arguments that the backward program reads or returns, without cotangents."""
        found = self._arguments(self.backward, self.halves.results)
        return [value for value in found if not self.halves.late[value]]

    @property
    def cotangents(self) -> list[int]:
        """Returns the cotangents that the backward program reads."""
        found = self._arguments(self.backward, self.halves.results)
        return [value for value in found if self.halves.late[value]]

    def _arguments(self, positions: Iterable[int], returned: Iterable[int]) -> list[int]:
        program = self.halves.program
        read = {value for position in positions for value in program.operands[position]}
        read.update(returned)
        return sorted(value for value in read if value < len(program.block.arguments))

    def repeated(self) -> list[int]:
        """Returns the positions of the expensive operations that both programs run."""
        kinds, front = self.halves.program.kinds, set(self.forward)
        return [p for p in self.backward if p in front and kinds[p] is OpKind.EXPENSIVE]

    def seconds_again(self, pricing: Pricing) -> float:
        """Returns the seconds of recomputed expensive work."""
        return sum(pricing.repeat_seconds(self.halves.program.ops[p]) for p in self.repeated())

    def flops_again(self) -> float:
        """Returns the FLOPs of recomputed matrix products."""
        nodes = self.halves.program.root.nodes
        return sum(nodes[position].flops for position in self.repeated())


def cheapest_boundary(halves: Halves) -> Boundary:
    """Returns the boundary with the fewest bytes that recomputes no expensive operation. Raises
    SplitError."""
    return _cut(halves, KeepNetwork.lightest, expensive=None)


def least_boundary(halves: Halves) -> Boundary:
    """Returns the boundary with the fewest bytes, whatever is recomputed. Raises SplitError."""
    return _cut(halves, KeepNetwork.lightest, expensive=lambda _: 0)


def bounded_boundary(halves: Halves, limit_bytes: int, pricing: Pricing) -> Boundary | None:
    """Returns the boundary with the fewest recomputed seconds within `limit_bytes`.

    None where no boundary fits the limit. Raises SplitError.
    """

    def price(op: ir.Operation) -> int:
        return max(1, round(pricing.repeat_seconds(op) * PRICE_UNITS))

    try:
        return _cut(halves, lambda network: budgeted_vertex_cut(network, limit_bytes), price)
    except _NoCutError:
        return None


class _NoCutError(Exception):
    """No cut meets the limit."""


def _cut(
    halves: Halves,
    solve: Callable[[KeepNetwork[int]], frozenset[int] | None],
    expensive: Callable[[ir.Operation], int] | None,
) -> Boundary:
    """Returns the boundary of a cut of the forward values.

    ``expensive`` prices a recomputed expensive operation; without it none may be recomputed.
    """
    program = halves.program
    values = [value for value in range(len(program.sizes)) if not halves.late[value]]
    network = KeepNetwork[int](never=1 + sum(program.sizes[value] or 0 for value in values))
    for value in values:
        network.add(value, _weight(program, value, network.never))
    for position in range(len(program.ops) - 1):
        results, kind = program.results[position], program.kinds[position]
        if not results or halves.late[results[0]] or kind is OpKind.OPAQUE:
            continue
        if kind is not OpKind.EXPENSIVE:
            network.make(results, program.operands[position])
        elif expensive is not None:
            price = expensive(program.ops[position])
            network.make(results, program.operands[position], price)
    network.want(halves.wanted)
    kept = solve(network)
    if kept is None:
        raise _NoCutError
    boundary = network.values_at(kept)
    for value in sorted(boundary):
        if network.weights[network.vertices[value]] >= network.never:
            raise SplitError(_about_unstorable(program.values[value]))
    return Boundary.at(halves, boundary)


def _weight(program: Program, value: int, unstorable: int) -> int:
    """Returns the weight of saving a value: the caller keeps arguments of any type."""
    if program.producers[value] == FROM_OUTSIDE:
        return 0
    size_bytes = program.sizes[value]
    if size_bytes is None or not isinstance(program.values[value].type, ir.RankedTensorType):
        return unstorable
    return size_bytes


def _needed(
    program: Program,
    wanted: Iterable[int],
    may_run: Callable[[int], bool] = lambda position: True,
    kept: Collection[int] = (),
) -> set[int]:
    """Returns the operations of `may_run` that compute these values from the kept ones."""

    def makers(values: Iterable[int]) -> list[int]:
        found = (program.producers[value] for value in values if value not in kept)
        return [position for position in found if position != FROM_OUTSIDE and may_run(position)]

    return reached(makers(wanted), lambda position: makers(program.operands[position]))


def _as_late_as_possible(
    program: Program, needed: set[int], own: Collection[int], returned: Iterable[int]
) -> tuple[int, ...]:
    """Returns the operations of the backward program: its own in order, others right before their
    reader.

    So the live ranges of recomputed values are as short as possible.
    """
    order: dict[int, None] = {}

    def run(wanted: Iterable[int]) -> None:
        opened, waiting = set[int](), sorted(wanted, reverse=True)
        while waiting:
            position = waiting[-1]
            if position in order or position in opened:
                order[waiting.pop()] = None
                continue
            opened.add(position)
            waiting += sorted(_makers(program, program.operands[position], needed) - order.keys(),
                              reverse=True)  # fmt: skip

    for position in sorted(own):
        if position in needed:
            run([position])
    run(_makers(program, returned, needed))
    return tuple(order)


def _makers(program: Program, values: Iterable[int], of: Collection[int]) -> set[int]:
    return {program.producers[value] for value in values} & set(of)


def _effect_in(node: Node) -> ir.Operation | None:
    """Returns an operation with an effect, this one or one in its regions; None without one."""
    for each in (node.op, *walk.operations(node.op)):
        if has_effects(each) and mark_name(each) is None and target_of(each) != PLACEMENT:
            return each
    unknown = node.effects and node.is_call and not node.blocks
    inner = (_effect_in(each) for block in node.blocks if node.is_call for each in block.nodes)
    return node.op if unknown else next((found for found in inner if found is not None), None)


def _about_effect(op: ir.Operation) -> str:
    is_callback = is_python_callback(target_of(op) or "")
    what = "a callback to Python" if is_callback else "an operation with an effect"
    return (
        f"{what} is in the step: {Described.at(op.location, op.name)}. Two programs would run it "
        "twice, or out of order; take it out, and return what it needs as an auxiliary output"
    )


def _about_unstorable(value: ir.Value) -> str:
    what = Described.of(value)
    return (
        f"the backward pass needs {what}, of type {value.type}, which is no array that a program "
        "can return; nothing else that it could be made from may be run twice"
    )


def about_floor(limit_bytes: int, least: Boundary) -> str:
    """Explains why no boundary fits the limit: the largest values of the least one."""
    program = least.halves.program
    largest = sorted(least.residuals, key=lambda value: (-program.bytes_of(value), value))[:3]
    listed = "; ".join(
        f"{size(program.bytes_of(value))} of {Described.of(program.values[value])}"
        for value in largest
    )
    more = len(least.residuals) - len(largest)
    listed += f"; and {more} more" if more else ""
    return (
        f"residuals={size(limit_bytes)} is less than the least that can cross: "
        f"{size(least.bytes)} on a device, whatever is computed again ({listed}): these may not be "
        "run twice"
    )
