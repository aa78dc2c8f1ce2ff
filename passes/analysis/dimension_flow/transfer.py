"""Transfer: the flows of an operation's results, by its signature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..signatures.signature import AxisLayout, Combine, FactorPlace, FactorReduction, Signature
from .flow import Flow, partial, split, whole

Flows = Sequence[Flow]


@dataclass(frozen=True, slots=True)
class FlowFit:
    """The flows of an operation's results, and the needs that they imply.

    Attributes:
      finished: operands that it reads whole although they are split or partial.
      cuts: whole operands of which it reads a chunk.
      captured: values from outside, by number, that its code reads whole although they are not.
    """

    results: tuple[Flow, ...]
    finished: tuple[int, ...] = ()
    cuts: tuple[tuple[int, AxisLayout], ...] = ()
    captured: tuple[int, ...] = ()


def transfer(
    signature: Signature | None, flows: Flows, results: int, *, rounds: bool = False
) -> FlowFit:
    """Returns the fit that needs the fewest loops; of these the one that finishes fewest operands.

    At worst all operands are finished, and the results are whole. ``rounds`` is set where nothing
    can be finished: there the terms of a sum are rounded like the sum, as in a loop written by
    hand.
    """
    if signature is not None:
        found: FlowFit | None = None
        for finished in _attempts(signature, flows):
            read = [
                flow.finished if number in finished else flow for number, flow in enumerate(flows)
            ]
            fit = _fit(signature, read, rounds)
            if fit is None:
                continue
            if not finished:
                return fit
            if found is None or fit.results[0].phase < found.results[0].phase:
                found = FlowFit(fit.results, tuple(sorted(finished)), fit.cuts)
        if found is not None:
            return found
    return finish(flows, results)


def finish(flows: Flows, results: int) -> FlowFit:
    """Returns the fit in which all operands are read whole."""
    phase = max((flow.finished.phase for flow in flows), default=0)
    read = tuple(number for number, flow in enumerate(flows) if not flow.is_whole)
    return FlowFit((whole(phase),) * results, read)


def _attempts(signature: Signature, flows: Flows) -> Iterator[frozenset[int]]:
    """Yields operands to finish: none; partial given ones; partial ones; and of the split ones all
    but one dimension.

    Operands are cut together that are split at the same place.
    """
    yield frozenset()
    partials = frozenset(number for number, flow in enumerate(flows) if flow.is_partial)
    given = frozenset(number for number in partials if flows[number].given)
    if given and given != partials:
        yield given
    splits = [number for number, flow in enumerate(flows) if flow.is_split]
    if partials and splits:
        yield partials
    places: dict[FactorPlace, set[int]] = {}
    for number in splits:
        place = _place(signature, number, flows[number])
        if place is not None:
            places.setdefault(place, set()).add(number)
    if len(places) > 1 or any(len(kept) < len(splits) for kept in places.values()):
        for kept in places.values():
            yield partials | (frozenset(splits) - kept)


def _place(signature: Signature, number: int, flow: Flow) -> FactorPlace | None:
    if flow.layout is None:
        return None
    return signature.place_in(signature.operands[number], flow.layout)


def _fit(signature: Signature, flows: Flows, rounds: bool) -> FlowFit | None:
    """Returns the results, without finishing anything; None where that is not possible."""
    splits = [number for number, flow in enumerate(flows) if flow.is_split]
    if splits:
        place = _place(signature, splits[0], flows[splits[0]])
        if place is None:
            return None
        if any(_place(signature, number, flows[number]) != place for number in splits[1:]):
            return None
        return _split_fit(signature, flows, place)
    return _linear_fit(signature, flows, rounds)


def _split_fit(signature: Signature, flows: Flows, place: FactorPlace) -> FlowFit | None:
    reduction = signature.reductions.get(place.factor)
    beside = frozenset[int]() if reduction is None else reduction.beside
    cuts = []
    for number, flow in enumerate(flows):
        if reduction is not None and number in beside:
            if not _is_term(flow, reduction):
                return None
        elif flow.is_partial:
            return None
        elif flow.is_whole:
            layout = signature.layout_of(signature.operands[number], place)
            if layout is not None:
                cuts.append((number, layout))
    phase = max(flow.least_loop for flow in flows)
    results = []
    for axes in signature.results:
        layout = signature.layout_of(axes, place)
        if layout is not None and reduction is None:
            results.append(split(layout, phase))
        elif layout is None and reduction is not None:
            results.append(partial(reduction.combine, phase))
        else:
            return None
    return FlowFit(tuple(results), cuts=tuple(cuts))


def _is_term(flow: Flow, reduction: FactorReduction) -> bool:
    """Whether every chunk may combine the value with its own term."""
    if flow.is_whole:
        return flow.zero or reduction.combine is not Combine.SUM
    return flow.combine is reduction.combine


def _linear_fit(signature: Signature, flows: Flows, rounds: bool) -> FlowFit | None:
    """Returns the fit of partial operands, in the loop that computes them: a later loop would
    recompute them."""
    partials = [flow for flow in flows if flow.is_partial]
    if not partials:
        return None
    combine = partials[0].combine
    phase = max(flow.least_loop for flow in flows)
    if combine is None or phase > min(flow.phase for flow in partials):
        return None
    terms = FactorReduction(combine)
    for group in signature.linear:
        kinds = group.kinds | group.rounded if rounds else group.kinds
        if combine in kinds and all(
            _is_term(flow, terms) if number in group.operands else flow.is_whole
            for number, flow in enumerate(flows)
        ):
            return FlowFit((partial(combine, phase),) * len(signature.results))
    return None
