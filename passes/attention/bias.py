"""Plans what is added to the scaled scores: the program's own code, with scores of zero."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.mlir import ir

from ..analysis.loops.pairs import LoopPair
from ..analysis.points.derivation import Derivation
from ..analysis.points.operations import how, same_operand
from ..framework.errors import NotPossibleError
from ..ir import walk
from ..ir.values import defining_op
from .products import ForwardRead
from .site import SCORES, Bias, Border, loops_inside


def bias_of(
    forward: ForwardRead, axes: tuple[int, ...], derivation: Derivation, borders: Sequence[Border]
) -> Bias:
    """Returns the bias of an attention.

    In one block it is computed from values that the logits are computed from. In loops it is
    computed once, before all of them: what it is computed from has to be available there.

    Raises NotPossibleError.
    """
    loops = loops_inside(borders)
    outside = borders[: len(borders) - len(loops)]
    if any(isinstance(each, LoopPair) for each in outside):
        raise NotPossibleError("its mask is made in a manual computation in a loop")
    if outside and forward.weights.product.block != borders[-1].bodies[0]:
        raise NotPossibleError("its mask is made in the manual computation of its gradient")
    collector = _Collector(derivation, forward, loops)
    collector.collect(forward.logits)
    groups = derivation.groups(forward.logits, collector.number)
    assert groups is not None
    return Bias(
        forward.logits,
        forward.of_logarithm,
        tuple(tuple((SCORES, axis) for axis in group) for group in groups),
        axes,
        tuple(collector.steps),
        tuple(collector.equals.items()),
        tuple(collector.scores),
        tuple(collector.shifts),
    )


class _Collector:
    def __init__(
        self, derivation: Derivation, forward: ForwardRead, loops: Sequence[LoopPair]
    ) -> None:
        self.scope = derivation.scope
        self.number = self.scope.number(forward.scores.results[0])
        self.steps: list[ir.Operation] = []
        self.equals: dict[ir.Value, ir.Value] = {}
        self.scores: dict[ir.Value, None] = {}
        self.shifts: dict[ir.Value, None] = {}
        self._zeros = {self.number: self.scores}
        if forward.shift is not None:
            self._zeros[self.scope.number(forward.shift.operands[1])] = self.shifts
        self._bodies = [body for each in loops for body in each.bodies]
        self._loop = loops[0].forward.op if loops else None
        self._made: dict[ir.Value, bool] = {}

    def collect(self, value: ir.Value) -> bool:
        """Adds the operations that compute a value. Returns whether there are any; otherwise the
        value is used as it is."""
        if value not in self._made:
            self._made[value] = self._collect(value)
        return self._made[value]

    def _collect(self, value: ir.Value) -> bool:
        if (number := self.scope.number(value)) in self._zeros:
            self._zeros[number][value] = None
            return True
        op = defining_op(value)
        block = value.owner if op is None else op.block
        is_inside = any(block == body for body in self._bodies)
        if is_inside and value in self.scope.stands_for:
            other = self.equals[value] = self.scope.stands_for[value]
            self.collect(other)
            return True
        if not is_inside and self._bodies:
            self._check_before_loop(op)
        same = same_operand(value)
        if same is not None:
            found = self.collect(same)
            if found or is_inside:
                self.equals[value] = same
            return found or is_inside
        if op is None or how(op) is None:
            if is_inside:
                raise NotPossibleError("its mask is made in the loop", op)
            return False
        made = [self.collect(operand) for operand in op.operands]
        if not is_inside and not any(made):
            return False
        self.steps.append(op)
        return True

    def _check_before_loop(self, op: ir.Operation | None) -> None:
        """Raises NotPossibleError where a value outside of loops is computed after the first."""
        if op is None or self._loop is None or op.block != self._loop.block:
            return
        if walk.key(op) == walk.key(self._loop) or not op.is_before_in_block(self._loop):
            raise NotPossibleError("its mask is made behind the loop")
