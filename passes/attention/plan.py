"""Plans which attentions become calls of a kernel, and says why others stay."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax.extend.mlir import ir

from ..analysis.loops.pairs import LoopPair
from ..analysis.points.derivation import Derivation
from ..analysis.points.operations import How
from ..analysis.shardings.exchanges import exchanges_of
from ..analysis.shardings.results import ResultPlaces
from ..analysis.shardings.shardings import Shardings
from ..framework.base import ListPlan
from ..framework.errors import NotPossibleError
from ..framework.tables import Described, Fact, Kind, Left, Table, reasons_left
from ..framework.target import Target
from ..framework.text import pluralize
from ..ir import mesh, walk
from ..ir.clone import IRMapping, clone_module
from ..ir.types import tensor_bytes
from ..ir.values import defining_op, element_of
from . import limits, pallas
from .bias import bias_of
from .devices import devices_of
from .find import Finder, Found, may_have_weights
from .products import ForwardRead, Products
from .reader import Forms
from .scopes import BorderedScope, scopes_of
from .site import (
    HEAD,
    VALUE,
    AttentionSite,
    Border,
    ForwardCall,
    From,
    FusedKernel,
    GradientCall,
    Labelled,
    Replaced,
    ends_of,
    passed_through,
)
from .softmax import held_by
from .write import is_at_hand, is_there, write_attentions


@dataclass(frozen=True)
class AttentionPlan(ListPlan[AttentionSite]):
    """The attentions that become calls of a kernel, in the order of the program, and those that
    stay.

    Attributes:
      module: the module.
      emulated: the calls become what the kernel computes, as operations.
    """

    module: ir.Module | None = None
    emulated: bool = False

    def facts(self) -> tuple[Fact, ...]:
        if self.empty:
            return ()
        gradients = sum(len(each.gradients) for each in self.decided)
        return (
            Fact("attentions in a kernel", len(self.decided)),
            Fact("gradients", gradients),
            Fact("weights not written", self.weights_bytes, Kind.BYTES),
        )

    @property
    def weights_bytes(self) -> int:
        """Returns the bytes of the weights that are not written any more."""
        return sum(each.weights_bytes for each in self.decided)

    def effect(self) -> str:
        return f"{pluralize(len(self.decided), 'attention')} in a fused kernel"

    def summary(self) -> str:
        parts = [", ".join(map(str, self.facts()))] if self.decided else []
        parts += reasons_left(self.left, "attention")
        return "; ".join(parts) or "no attention"

    def decided_tables(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                Described.of(each.calls[0].product),
                f"{each.kernel.scale:.4g}",
                each.mask,
                each.kernel.element,
                len(each.gradients),
                each.weights_bytes,
            )
            for each in self.decided
        )
        return (Table("Attention in a fused kernel", _COLUMNS, rows),)


_COLUMNS = {
    "product": Kind.VALUE,
    "scale": Kind.TEXT,
    "mask": Kind.TEXT,
    "elements": Kind.TEXT,
    "gradients": Kind.COUNT,
    "weights": Kind.BYTES,
}


def plan_attention(
    module: ir.Module, target: Target, *, kernel: str, min_keys: int, cast: str
) -> AttentionPlan:
    """Plans a module for one kernel, "cudnn", "pallas" or "emulated"."""
    planner = _Planner(module, target, kernel, cast)
    forms = Forms()
    decided: list[AttentionSite] = []
    left: list[Left] = []
    for scope in scopes_of(module) if may_have_weights(module) else ():
        finder = Finder(scope, forms, min_keys)
        for found in finder.find():
            try:
                decided.append(planner.attention(len(decided), scope, found, finder.derivation))
            except NotPossibleError as error:
                left.append(Left(Described.of(found.forwards[0].weights.product), error.reason))
        left += finder.left
    placed = [each for each in decided if each.devices is not None]
    if placed:
        more = _more_collectives(module, placed)
        if more:
            left += [Left(Described.of(each.calls[0].product), more) for each in placed]
            decided = [each for each in decided if each.devices is None]
    return AttentionPlan(tuple(decided), tuple(left), module, kernel == limits.EMULATED)


class _Planner:
    def __init__(self, module: ir.Module, target: Target, kernel: str, cast: str) -> None:
        self._module, self._target, self._kernel, self._cast = module, target, kernel, cast

    @functools.cached_property
    def _shardings(self) -> Shardings:
        return Shardings.of(self._module)

    def attention(
        self, number: int, scope: BorderedScope, found: Found, derivation: Derivation
    ) -> AttentionSite:
        """Returns the plan of one attention. Raises NotPossibleError."""
        borders = scope.borders
        if any(isinstance(each, LoopPair) and each.forward.is_open for each in borders):
            raise NotPossibleError("it is in loops whose trip count is not constant")
        forward = found.forwards[0]
        product = forward.weights.product
        devices = None
        if not mesh.is_manual(product, mesh.partition_count(self._module)):
            if mesh.is_in_manual_computation(product.block):
                raise NotPossibleError("only some axes of the mesh are manual around it")
            devices = devices_of(forward, self._shardings)
        operands = (forward.queries, forward.keys, forward.values)
        element = limits.element_for(operands, self._kernel, self._cast)
        if not held_by(found.logits.bias_numbers, element):
            raise NotPossibleError(f"its bias has numbers that {element} does not hold")
        sizes = {**forward.queries.sizes(HEAD), **forward.values.sizes(VALUE)}
        kernel = FusedKernel(
            forward.axes,
            found.logits.scale,
            found.logits.mask,
            found.empty_rows,
            element,
            tuple(sizes.items()),
        )
        bias = None
        if found.logits.bias_axes:
            bias = bias_of(forward, found.logits.bias_axes, derivation, borders)
            if self._kernel == limits.PALLAS:
                pallas.check_mask_of_keys(forward, found.logits, derivation.scope)
                bias = replace(bias, masks_keys=True)
        if self._cast == "off":
            for each in found.forwards:
                _check_output(each, element)
        calls = tuple(map(_call, found.forwards))
        for call in calls:
            for operand in (call.queries, call.keys, call.values):
                if not is_at_hand(operand.value, call.product, borders):
                    raise NotPossibleError("an operand of it is made after its product")
        gradients = tuple(
            self._gradient(each, calls, kernel, borders, derivation) for each in found.gradients
        )
        if self._kernel != limits.EMULATED:
            head, values = (
                math.prod(size for label, size in sizes.items() if label[0] == kind)
                for kind in (HEAD, VALUE)
            )
            query = forward.axes.query
            queries = 1 if query is None else forward.axes.sizes[query]
            heads = head, values
            if self._kernel == limits.CUDNN:
                limits.check(kernel, bias, self._target, queries=queries, heads=heads)
            else:
                pallas.check(kernel, forward, queries=queries, heads=heads)
                if any(each.bias for each in gradients):
                    raise NotPossibleError("Pallas' kernels have no gradient of a bias")
        return AttentionSite(
            f"attention-{number}",
            kernel,
            bias,
            calls,
            gradients,
            borders,
            devices,
            _weights_bytes(forward, borders),
        )

    def _gradient(
        self,
        products: Products,
        calls: Sequence[ForwardCall],
        kernel: FusedKernel,
        borders: Sequence[Border],
        derivation: Derivation,
    ) -> GradientCall:
        dq, dk, dv = (
            None if scored is None else Replaced(scored.product, scored.result_labels(kind))
            for scored, kind in ((products.dq, HEAD), (products.dk, HEAD), (products.dv, VALUE))
        )
        replaced = [*(each for each in (dq, dk, dv) if each is not None), *products.bias]
        place = replaced[0].op
        own = [each.op.block for each in replaced]
        own += [] if products.scores is None else [products.scores.dp.block]
        if any(block != place.block for block in own):
            raise NotPossibleError("the products of its gradient are in different blocks")
        for each in replaced[1:]:
            if each.op.is_before_in_block(place):
                place = each.op
        scored = derivation.scope.number(calls[0].scores.results[0])
        scores = defining_op(derivation.origin(products.scored[0].value, scored))
        assert scores is not None
        if scores.block == place.block:  # a checkpoint computes them again, from its operands
            products = replace(products, forward=replace(products.forward, scores=scores))
        operands = (products.queries, products.keys, products.values, products.output)
        for operand in operands:
            if not is_at_hand(operand.value, place, borders):
                raise NotPossibleError("an operand of its gradient is made after a product of it")
        source, number = _source(calls, scores, place, borders)
        stacked = None
        if source is From.STACK:
            inner = [*(ends_of(each)[1] for each in borders[1:]), place]
            for border, end in zip(borders, inner, strict=True):
                if isinstance(border, LoopPair) and not is_there(border.index, end):
                    raise NotPossibleError(
                        "the loop's index is made behind a product of its gradient"
                    )
            stacked = _stacked(borders[-1], calls[number], kernel, place, derivation)
        return GradientCall(place, source, number, stacked, *operands, dq, dk, dv, products.bias)


def _more_collectives(module: ir.Module, attentions: Sequence[AttentionSite]) -> str:
    """Returns the collectives that the partitioner would add if the attentions were rewritten,
    since values around the kernels may then be placed otherwise; empty where it adds none."""
    clone, places = clone_module(module), ResultPlaces.of(module)
    number = {walk.key(op): place for place, op in enumerate(walk.operations(module.operation))}
    write_attentions(clone, IRMapping(number, clone).of(tuple(attentions)), emulated=True)
    if places is not None:
        places.hold(clone)
    before, after = map(_collectives, (module, clone))
    more = [
        pluralize(count - before[kind], kind)
        for kind, count in sorted(after.items())
        if count > before[kind]
    ]
    if not more:
        return ""
    return f"with the kernels the mesh's devices would run {' and '.join(more)} more"


def _collectives(module: ir.Module) -> Counter[str]:
    """Returns how many collectives of each kind a step runs; all-reduces and reduce-scatters are
    of one: the kernel's gradients of shared keys are whole on each device."""
    found: Counter[str] = Counter()
    for each in exchanges_of(module):
        kind = each.exchange.kind
        is_sum = kind in ("all-reduce", "reduce-scatter")
        found["reduction" if is_sum else kind] += each.exchange.runs
    return found


def _check_output(forward: ForwardRead, element: str) -> None:
    """Raises NotPossibleError where the kernel would round an output that the program does not."""
    output = forward.weights.product.results[0]
    if str(element_of(output)) not in (element, "f32") or (
        str(element_of(output)) != element and not _is_rounded(output, element)
    ):
        raise NotPossibleError(
            f"its output is read as {element_of(output)}, and the kernel gives {element}"
        )


def _call(forward: ForwardRead) -> ForwardCall:
    return ForwardCall(
        forward.weights.product,
        forward.scores,
        forward.queries,
        forward.keys,
        forward.values,
        forward.weights.result_labels(VALUE),
    )


def _is_rounded(value: ir.Value, element: str) -> bool:
    """Whether all readers of a value, through movements, convert it to a type of elements."""
    for use in value.uses:
        op = use.owner.operation
        if op.name == "stablehlo.convert" and str(element_of(op.results[0])) == element:
            continue
        if op.name not in ("stablehlo.reshape", "stablehlo.transpose"):
            return False
        if not _is_rounded(op.results[0], element):
            return False
    return True


def _source(
    calls: Sequence[ForwardCall],
    scores: ir.Operation,
    place: ir.Operation,
    borders: Sequence[Border],
) -> tuple[From, int]:
    """Returns where a gradient has the output from, and of which call.

    A gradient whose scores the program computes again has them from a call after these, or makes
    one: to keep the first one's output would undo a checkpoint.
    """
    key = walk.key(scores)
    for number in reversed(range(len(calls))):
        call = calls[number]
        if walk.key(call.scores) != key or call.product.block != place.block:
            continue
        if call.product.is_before_in_block(place):
            return From.CALL, number
    if scores.block == place.block:
        return From.AGAIN, 0
    for number, call in enumerate(calls):
        if borders and (call.product.block, place.block) == borders[-1].bodies:
            return From.STACK, number
    raise NotPossibleError("its output is in another block than its gradient")


def _stacked(
    border: Border,
    call: ForwardCall,
    kernel: FusedKernel,
    place: ir.Operation,
    derivation: Derivation,
) -> Labelled | None:
    """Returns the read of a stack that holds the output already, in whatever order of axes."""
    output = call.product.results[0]
    number = derivation.scope.number(output)
    for stored, reads in passed_through(border):
        if str(element_of(stored)) != kernel.element:
            continue
        if not _is_moved(stored, number, kernel.element, derivation):
            continue
        groups = derivation.groups(stored, number)
        if groups is None:
            continue
        labels = tuple(
            tuple(label for axis in group for label in call.output[axis]) for group in groups
        )
        for read in reads:
            if is_there(read, place):
                return Labelled(read, labels)
    return None


def _is_moved(value: ir.Value, number: int, element: str, derivation: Derivation) -> bool:
    """Whether a value has the numbered one's elements, at most converted to a type of elements."""
    scope = derivation.scope
    while scope.number(value) != number:
        made = scope.made_by(value)
        if made is None:
            return False
        is_converted = made[0].name == "stablehlo.convert" and str(element_of(value)) in (
            element,
            "f32",
        )
        if made[1] is not How.SPREAD and not is_converted:
            return False
        value = made[0].operands[0]
    return True


def _weights_bytes(forward: ForwardRead, borders: Sequence[Border]) -> int:
    value = forward.weights.value
    once = tensor_bytes(value.type) or 0
    return once * math.prod(x.forward.trip_count for x in borders if isinstance(x, LoopPair))
