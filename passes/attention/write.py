"""Writes calls of the kernel in place of the products, and removes what nothing reads any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..analysis.purity import erase_dead
from ..ir.attention_marks import AttentionCall, attention, attention_gradient
from ..ir.build import (
    broadcast,
    compare,
    converted,
    einsum,
    reduce,
    reshaped,
    splat,
    transposed,
    typed,
    zeros,
)
from ..ir.marks import MarkBuilder, next_channel
from ..ir.values import defining_op, element_of, shape_of
from .arrange import all_sizes, arranged, element_type, of_bias, of_keys, of_queries, restored
from .crossings import BorderCrossing, Crossings
from .devices import by_parts, summed_over
from .site import (
    HEAD,
    VALUE,
    AttentionSite,
    Bias,
    Border,
    EmptyRows,
    ForwardCall,
    From,
    GradientCall,
    Labelled,
    Replaced,
    ends_of,
)
from .softmax import MASKED, NEAR

_LOWEST = {"bf16": -float(2**41), "f16": -float(2**15), "f32": -1e30}
"""The bias that masks a key, by element type, as in JAX's calls: cuDNN takes no infinities."""

_MOVEMENTS = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "convert", "reshape", "transpose")
)


def is_there(value: ir.Value, place: ir.Operation) -> bool:
    """Whether a value can be read before an operation: it is computed before, or is a movement of a
    value that is."""
    while True:
        op = defining_op(value)
        if op is None or op.block != place.block or op.is_before_in_block(place):
            return True
        if op.name not in _MOVEMENTS:
            return False
        value = op.operands[0]


def is_at_hand(value: ir.Value, place: ir.Operation, borders: Sequence[Border]) -> bool:
    """Whether a value can be read in front of an operation, or can be passed on to its block."""
    if borders:
        forward, backward = borders[-1].bodies
        if _is_of(value, forward) and place.block != forward:
            return place.block == backward
        if _is_of(value, backward) and place.block != backward:
            return False
    return is_there(value, place)


def _is_of(value: ir.Value, block: ir.Block) -> bool:
    """Whether a value is computed in a block, or is an argument of it."""
    op = defining_op(value)
    made_in: object = value.owner if op is None else op.block
    return made_in == block


def _available(value: ir.Value, place: ir.Operation) -> ir.Value:
    """Returns a value that can be read at the insertion point, in front of an operation."""
    op = defining_op(value)
    if op is None or op.block != place.block or op.is_before_in_block(place):
        return value
    operand = _available(op.operands[0], place)
    made = op.clone().operation
    made.operands[0] = operand
    return made.results[0]


@dataclass(frozen=True)
class _Added:
    """The bias as the kernel takes it, and which rows have no key, [1 or batch, 1 or heads,
    queries]; None where these are as any other."""

    bias: ir.Value
    hidden: ir.Value | None

    def moved(self, move: Callable[[ir.Value], ir.Value]) -> _Added:
        """Returns both values moved to another place."""
        return _Added(move(self.bias), None if self.hidden is None else move(self.hidden))


@dataclass(frozen=True)
class _Made:
    """The results of a call of the kernel."""

    output: ir.Value
    statistics: ir.Value


def write_attentions(
    module: ir.Module, attentions: Sequence[AttentionSite], *, emulated: bool
) -> None:
    """Writes the calls of attentions of a module."""
    marks, channel = MarkBuilder(module), next_channel(module)
    crossings = Crossings()
    blocks: dict[ir.Block, None] = {}
    for number, each in enumerate(attentions):
        if not each.borders:
            blocks[each.calls[0].product.block] = None
        crossing = crossings.of(each.borders)
        _Writer(each, marks, number, crossing, channel + number, emulated=emulated).write()
    for block in blocks:
        erase_dead(block)
    crossings.rebuild()


class _Writer:
    """Writes the calls of one attention."""

    def __init__(
        self,
        attention: AttentionSite,
        marks: MarkBuilder,
        number: int,
        crossing: BorderCrossing | None,
        channel: int,
        *,
        emulated: bool,
    ) -> None:
        self.channel = channel
        self.attention, self.kernel, self.marks = attention, attention.kernel, marks
        self.crossing = crossing
        self.sizes = all_sizes(self.kernel)
        mask = self.kernel.mask
        self.call = AttentionCall(
            self.kernel.scale,
            mask.causal,
            mask.window,
            number,
            emulated,
            has_bias=attention.bias is not None,
            masks_keys=attention.bias is not None and attention.bias.masks_keys,
        )
        self.made: list[_Made] = []
        self._biases: dict[bool, _Added] = {}
        """The bias in forward code, and in backward code."""

    def write(self) -> None:
        """Writes all calls, those of gradients last."""
        for call in self.attention.calls:
            self._write_call(call)
        for gradient in self.attention.gradients:
            self._write_gradient(gradient)

    def _write_call(self, call: ForwardCall) -> None:
        place = call.product
        with ir.InsertionPoint(place), place.location:
            queries, keys, values = self._operands(
                *(
                    Labelled(self._read_at(each.value, place), each.labels)
                    for each in (call.queries, call.keys, call.values)
                )
            )
            added = self._bias(place)
            bias = None if added is None else added.bias
            made = self._attention(self._seeing(queries, added), keys, values, bias)
            result = call.product.results[0]
            order = of_queries(self.kernel, VALUE)
            new = restored(made.output, order, call.output, self.sizes, result)
        result.replace_all_uses_with(new)
        self.made.append(made)

    def _attention(
        self, queries: ir.Value, keys: ir.Value, values: ir.Value, bias: ir.Value | None
    ) -> _Made:
        devices, marks, call = self.attention.devices, self.marks, self.call
        if devices is None:
            return _Made(*attention(marks, queries, keys, values, bias, call))
        batch, length, heads, _ = shape_of(queries)
        output = typed(queries, [batch, length, heads, shape_of(values)[-1]])
        statistics = ir.RankedTensorType.get([batch, heads, length], ir.F32Type.get())
        operands = [(queries, devices.of_queries), (keys, devices.of_keys)]
        operands.append((values, devices.of_keys))
        if bias is not None:
            operands.append((bias, devices.of_bias(bias)))

        def body(parts: Sequence[ir.Value]) -> Sequence[ir.Value]:
            q, k, v, *rest = parts
            return attention(marks, q, k, v, rest[0] if rest else None, call)

        results = [(output, devices.of_queries), (statistics, devices.of_statistics)]
        return _Made(*by_parts(devices, operands, results, body))

    def _gradient(self, operands: Sequence[ir.Value], *, with_bias: bool) -> list[ir.Value]:
        devices, marks, call = self.attention.devices, self.marks, self.call
        if devices is None:
            return attention_gradient(marks, operands, call, with_bias=with_bias)
        biases = operands[3:4] if call.has_bias else []
        placements = [devices.of_queries, devices.of_keys, devices.of_keys]
        placements += [devices.of_bias(bias) for bias in biases]
        results = placements[: 4 if with_bias else 3]
        placements += [devices.of_queries, devices.of_statistics, devices.of_queries]

        def body(parts: Sequence[ir.Value]) -> Sequence[ir.Value]:
            found = attention_gradient(marks, parts, call, with_bias=with_bias)
            for number in (1, 2):  # each device has the terms of its heads of queries
                names = devices.summed_for_keys
                found[number] = summed_over(devices, found[number], names, self.channel)
            if with_bias:
                names = devices.summed_for(operands[3])
                found[3] = summed_over(devices, found[3], names, self.channel)
            return found

        return by_parts(
            devices,
            [*zip(operands, placements, strict=True)],
            [(value.type, at) for value, at in zip(operands, results, strict=False)],
            body,
        )

    def _operands(
        self, queries: Labelled, keys: Labelled, values: Labelled
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        kernel = self.kernel
        return (
            arranged(queries, of_queries(kernel, HEAD), kernel),
            arranged(keys, of_keys(kernel, HEAD), kernel),
            arranged(values, of_keys(kernel, VALUE), kernel),
        )

    def _write_gradient(self, gradient: GradientCall) -> None:
        place, kernel = gradient.place, self.kernel
        with ir.InsertionPoint(place), place.location:
            queries, keys, values, given = (
                Labelled(self._read_at(each.value, place), each.labels)
                for each in (gradient.queries, gradient.keys, gradient.values, gradient.output)
            )
            q, k, v = self._operands(queries, keys, values)
            d_output = arranged(given, of_queries(kernel, VALUE), kernel)
            added = self._bias(place)
            bias = None if added is None else added.bias
            seeing = self._seeing(q, added)
            if gradient.source is From.CALL:
                made = self.made[gradient.call]
            elif gradient.source is From.AGAIN:
                made = self._attention(seeing, k, v, bias)
            else:
                made = self._stacked(gradient)
            operands = [seeing, k, v, *([] if bias is None else [bias])]
            operands += [made.output, made.statistics, d_output]
            found = self._gradient(operands, with_bias=bool(gradient.bias))
            if added is not None and added.hidden is not None:
                self._add_hidden_rows(gradient, q, operands, found, added.hidden)
            for number, (replaced, order) in enumerate(
                (
                    (gradient.dq, of_queries(kernel, HEAD)),
                    (gradient.dk, of_keys(kernel, HEAD)),
                    (gradient.dv, of_keys(kernel, VALUE)),
                )
            ):
                if replaced is None:
                    continue
                result = replaced.op.results[0]
                new = restored(found[number], order, replaced.labels, self.sizes, result)
                result.replace_all_uses_with(new)
            for replaced in gradient.bias:
                self._replace_bias_gradient(replaced, found[3])

    def _add_hidden_rows(
        self,
        gradient: GradientCall,
        queries: ir.Value,
        operands: Sequence[ir.Value],
        found: list[ir.Value],
        hidden: ir.Value,
    ) -> None:
        """Corrects gradients that the kernel computed with zero queries in rows without a key."""
        kind = self.kernel.empty_rows
        keys, output = operands[1], operands[-3]
        if kind is EmptyRows.FLAT or kind is EmptyRows.UNEVEN:
            if not gradient.dk:
                return
            unseen = _where(self._of_queries(hidden, queries), queries)
            if kind is EmptyRows.FLAT:
                more = self._of_flat_rows(unseen, operands[2], output, operands[-1])
            else:
                more = converted(self._of_uneven_rows(unseen, operands, hidden), ir.F32Type.get())
            wide = stablehlo.add(converted(found[1], ir.F32Type.get()), more)
            found[1] = converted(wide, element_of(keys))
            return
        seen = stablehlo.not_(hidden)
        found[0] = _where(self._of_queries(seen, found[0]), found[0])
        if gradient.bias:
            rows = broadcast(seen, shape_of(found[3]), [0, 1, 2])
            found[3] = _where(rows, found[3])

    def _read_at(self, value: ir.Value, place: ir.Operation) -> ir.Value:
        """Returns an operand of a call at the insertion point, in front of an operation."""
        if self.crossing is not None:
            forward, _ = self.crossing.border.bodies
            if place.block != forward and _is_of(value, forward):
                return self.crossing.pass_on(value)
        return _available(value, place)

    def _of_flat_rows(
        self, queries: ir.Value, values: ir.Value, output: ir.Value, d_output: ir.Value
    ) -> ir.Value:
        """Returns the gradient of the keys from rows in which all weigh the same, which the kernel,
        given queries of zero, leaves out.

        Linear in the values: scale / keys * sum over rows of (d_output * value - d_output * output)
        * query, so that no array of weights is made.
        """
        f32 = ir.F32Type.get()
        batch, length, heads, size = shape_of(queries)
        _, keys, shared, elements = shape_of(values)
        rows = [batch, length, shared, heads // shared]
        queries = reshaped(converted(queries, f32), [*rows, size])
        given = reshaped(converted(d_output, f32), [*rows, elements])
        output = reshaped(converted(output, f32), [*rows, elements])
        by_value = einsum("btngh,btngv->bnhv", queries, given)
        first = einsum("bsnv,bnhv->bsnh", converted(values, f32), by_value)
        inner = reduce(
            stablehlo.multiply(given, output),
            [4],
            splat(ir.RankedTensorType.get([], f32), 0.0),
            stablehlo.add,
        )
        rest = einsum("btngh,btng->bnh", queries, inner)
        found = stablehlo.subtract(first, broadcast(rest, shape_of(first), [0, 2, 3]))
        return stablehlo.multiply(found, splat(found.type, self.kernel.scale / keys))

    def _of_uneven_rows(
        self, queries: ir.Value, operands: Sequence[ir.Value], hidden: ir.Value
    ) -> ir.Value:
        """Returns the gradient of the keys from rows whose weights follow from the bias alone, by
        one more call. Its keys are zeros, and so are the queries of the other rows, which it leaves
        out."""
        _, keys, values, bias, output, statistics, d_output = operands
        given = _where(self._of_queries(hidden, d_output), d_output)
        rows = broadcast(hidden, shape_of(bias), [0, 1, 2])
        # Else the exponential of a bias less another row's statistics could overflow.
        alone = stablehlo.select(rows, bias, splat(bias.type, _LOWEST[self.kernel.element]))
        read = [queries, zeros(keys.type), values, alone, output, statistics, given]
        return self._gradient(read, with_bias=False)[1]

    def _replace_bias_gradient(self, replaced: Replaced, found: ir.Value) -> None:
        """Replaces a reduction of the gradient of the logits by the kernel's gradient of the bias,
        summed further along axes that the bias has and the result has not."""
        assert self.attention.bias is not None
        axes = {*self.attention.bias.axes}
        whole = of_bias(self.kernel)
        order = tuple(
            tuple(x for x in group if x[1] in self._bias_axes(group, axes)) for group in whole
        )
        have = [label for group in order for label in group]
        kept = [label for group in replaced.labels for label in group]
        value = reshaped(found, [self.sizes[label] for label in have])
        summed = [
            place for place, label in enumerate(have) if label not in kept and self.sizes[label] > 1
        ]
        result = replaced.op.results[0]
        if summed:
            wide = converted(value, ir.F32Type.get())
            scalar = splat(ir.RankedTensorType.get([], ir.F32Type.get()), 0.0)
            value = reduce(wide, summed, scalar, stablehlo.add)
            have = [label for place, label in enumerate(have) if place not in summed]
        new = restored(value, (tuple(have),), replaced.labels, self.sizes, result)
        result.replace_all_uses_with(new)

    def _bias_axes(self, group: Sequence[tuple[str, int]], axes: set[int]) -> set[int]:
        """Returns the axes of a group along which the kernel's bias is whole: all, where it depends
        on one, and always positions."""
        mine = {label[1] for label in group}
        return mine if mine & (axes | self._positions) else set()

    @property
    def _positions(self) -> set[int | None]:
        """Returns the axes along which the kernel's bias is whole, whatever it depends on."""
        axes, bias = self.kernel.axes, self.attention.bias
        is_of_keys = bias is not None and bias.masks_keys
        return {axes.key} if is_of_keys else {axes.key, axes.query}

    # The bias.

    def _bias(self, place: ir.Operation) -> _Added | None:
        """Returns the bias at the insertion point."""
        bias, crossing = self.attention.bias, self.crossing
        if bias is None:
            return None
        if crossing is None or self.attention.is_in_one_block:
            return self._written(bias)
        is_backward = place.block == crossing.border.bodies[1]
        loops = self.attention.loops
        if not loops:
            if False not in self._biases:
                self._biases[False] = self._written(bias)
            made = self._biases[False]
            return made.moved(crossing.pass_on) if is_backward else made
        around = crossing
        for _ in loops[1:]:
            assert around.outer is not None
            around = around.outer
        forward, backward = ends_of(loops[0])
        if False not in self._biases:
            with ir.InsertionPoint(forward), forward.location:
                self._biases[False] = self._biases[True] = self._written(bias)
            if around.outer is not None:
                with ir.InsertionPoint(backward), backward.location:
                    self._biases[True] = self._biases[False].moved(around.outer.pass_on)
        body = place.block
        return self._biases[is_backward].moved(lambda value: crossing.bring(value, body))

    def _written(self, bias: Bias) -> _Added:
        kernel = self.kernel
        value, reached = _cloned(bias), None
        if kernel.empty_rows not in (EmptyRows.NONE, EmptyRows.SOFTMAX):
            scores = NEAR / abs(kernel.scale)
            reached = self._placed(compare(_cloned(bias, scores), value, "NE"), bias)
        if bias.of_logarithm:
            value = stablehlo.log(value)
        value, hidden = self._shifted(self._placed(value, bias), reached)
        element = str(element_of(value))
        lowest = max(_LOWEST[kernel.element], _LOWEST.get(element, _LOWEST["f32"]))
        value = stablehlo.maximum(value, splat(value.type, lowest))
        return _Added(converted(value, element_type(kernel.element)), hidden)

    def _placed(self, value: ir.Value, bias: Bias) -> ir.Value:
        """Returns a value of the logits' shape in the kernel's order of axes, with one element
        along those that the bias does not depend on."""
        kernel = self.kernel
        flat = [label[1] for group in bias.labels for label in group]
        axes = kernel.axes
        positions = self._positions
        value = reshaped(value, [axes.sizes[axis] for axis in flat])
        kept = [axes.sizes[axis] if axis in bias.axes or axis in positions else 1 for axis in flat]
        value = stablehlo.slice(value, [0] * len(flat), kept, [1] * len(flat))
        groups = of_bias(kernel)
        wanted = [label[1] for group in groups for label in group]
        value = transposed(value, [flat.index(axis) for axis in wanted])
        full = [
            axes.sizes[label[1]] if label[1] in self._bias_axes(group, {*bias.axes}) else 1
            for group in groups
            for label in group
        ]
        if shape_of(value) != full:
            same = [axis for axis, size in enumerate(shape_of(value)) if size == full[axis]]
            narrow = reshaped(value, [full[axis] for axis in same])
            value = broadcast(narrow, full, same)
        sizes = iter(full)
        shape = []
        for group in groups:
            size = 1
            for _ in group:
                size *= next(sizes)
            shape.append(size)
        return reshaped(value, shape)

    def _shifted(
        self, bias: ir.Value, reached: ir.Value | None
    ) -> tuple[ir.Value, ir.Value | None]:
        """Returns a bias whose largest number in a row without a key is 0, and those of these rows
        in which the program's masks and its rounding hide the scores.

        The kernel keeps the logarithm of a sum next to its largest term: behind -2^41 nothing is
        left of it, and the gradient would count each key of such a row as a whole one. The bias
        that is given still has numbers below that.
        """
        kind = self.kernel.empty_rows
        if kind is EmptyRows.NONE:
            return bias, None
        lowest = splat(ir.RankedTensorType.get([], element_of(bias)), -math.inf)
        largest = reduce(bias, [3], lowest, stablehlo.maximum)
        empty = compare(largest, splat(largest.type, MASKED), "LE")
        shape, axes = shape_of(bias), [0, 1, 2]
        same = broadcast(largest, shape, axes)
        # Equal infinities have no difference.
        apart = stablehlo.subtract(bias, same)
        shifted = stablehlo.select(compare(bias, same, "EQ"), zeros(bias.type), apart)
        shifted = stablehlo.select(broadcast(empty, shape, axes), shifted, bias)
        if reached is None:
            return shifted, None
        none = zeros(ir.RankedTensorType.get([], element_of(reached)))
        counts = compare(shifted, splat(shifted.type, MASKED), "GT")
        shows = reduce(stablehlo.and_(reached, counts), [3], none, stablehlo.or_)
        return shifted, stablehlo.and_(empty, stablehlo.not_(shows))

    def _seeing(self, queries: ir.Value, added: _Added | None) -> ir.Value:
        """Returns queries, zeros in rows whose scores are hidden."""
        if added is None or added.hidden is None:
            return queries
        return _where(self._of_queries(stablehlo.not_(added.hidden), queries), queries)

    def _of_queries(self, rows: ir.Value, queries: ir.Value) -> ir.Value:
        """Returns a value of [batch, heads, queries] in the shape of the queries."""
        batch, heads, length = shape_of(rows)
        rows = transposed(rows, [0, 2, 1])
        shape = shape_of(queries)
        kept = [
            axis
            for axis, size in enumerate((batch, length, heads))
            if size != 1 or shape[axis] == 1
        ]
        return broadcast(reshaped(rows, [shape[axis] for axis in kept]), shape, kept)

    def _stacked(self, gradient: GradientCall) -> _Made:
        """Returns, in the backward body, the output and statistics of a call in the forward one."""
        assert self.crossing is not None
        made = self.made[gradient.call]
        statistics = self.crossing.pass_on(made.statistics)
        if gradient.stacked is None:
            return _Made(self.crossing.pass_on(made.output), statistics)
        read = Labelled(_available(gradient.stacked.value, gradient.place), gradient.stacked.labels)
        order = of_queries(self.kernel, VALUE)
        return _Made(arranged(read, order, self.kernel), statistics)


def _where(kept: ir.Value, value: ir.Value) -> ir.Value:
    """Returns a value where it is kept, elsewhere zeros."""
    found: ir.Value = stablehlo.select(kept, value, zeros(value.type))
    return found


def _cloned(bias: Bias, scores: float = 0.0) -> ir.Value:
    """Returns the logits with scores of one number, computed at the insertion point."""
    equals = dict(bias.equals)
    known: dict[ir.Value, ir.Value] = {}
    for score in bias.scores:
        known[score] = splat(score.type, scores)
    for shift in bias.shifts:
        known[shift] = zeros(shift.type)

    def now(value: ir.Value) -> ir.Value:
        while value not in known and value in equals:
            value = equals[value]
        return known.get(value, value)

    for step in bias.steps:
        made = step.clone().operation
        for number, operand in enumerate(step.operands):
            made.operands[number] = now(operand)
        known.update(zip(step.results, made.results, strict=True))
    return now(bias.logits)
