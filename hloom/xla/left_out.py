"""Counts the thunks that CUDA graphs hold, and finds why each of the others is in none."""

from __future__ import annotations

from collections.abc import Iterator

from hloom.passes.ir.custom_calls import OWN, is_python_callback
from hloom.xla.coverage import Coverage, LeftOut
from hloom.xla.hlo import HloInstruction, HloModule
from hloom.xla.thunks import GRAPH, Thunk, walk


def coverage(sequence: list[Thunk], names: dict[int, str], hlo: HloModule) -> Coverage:
    """Counts, and finds the reason of each thunk that is left out.

    Args:
      sequence: the thunks after XLA formed graphs.
      names: the thunks' instructions, by number.
      hlo: the module that they come from.
    """
    graphs = captured = 0
    for inside, thunk in _with_place(sequence):
        if thunk.kind == GRAPH and not inside:
            graphs += 1
        captured += inside and thunk.counts
    total = sum(1 for thunk in walk(sequence) if thunk.counts)
    left_out = tuple(_LeftOuts(names, hlo).of(sequence))
    return Coverage(thunks=total, captured=captured, graphs=graphs, left_out=left_out)


def _with_place(thunks: list[Thunk], *, inside: bool = False) -> Iterator[tuple[bool, Thunk]]:
    """Yields every thunk, and whether it is inside a graph."""
    for thunk in thunks:
        yield inside, thunk
        yield from _with_place(thunk.children, inside=inside or thunk.kind == GRAPH)


_COLLECTIVES = frozenset(
    f"k{name}"
    for name in (
        "AllGather AllReduce AllToAll CollectiveBroadcast CollectiveKernel CollectivePermute Group "
        "RaggedAllToAll ReduceScatter"
    ).split()
)
_HOST = frozenset(
    f"k{name}"
    for name in (
        "CopyDone DeviceToHostCopy HostExecuteDone HostExecuteStart HostRecv HostRecvDone HostSend "
        "HostSendDone HostToDeviceCopy Infeed Outfeed Recv RecvDone Send SendDone"
    ).split()
)
_ASYNC = frozenset({"kAsyncDone", "kAsyncStart"})
_BRANCHING = frozenset({"kConditional", "kWhile"})

_LIBRARY = frozenset({"kCholesky", "kConvolution", "kFft", "kTriangularSolve"})
"""The prefix of hloom's own kernels, which have the command-buffer trait."""
_SLICES = "kDynamicSliceFusion"


class _LeftOuts:
    """Finds the thunks outside graphs, each with its reason."""

    def __init__(self, names: dict[int, str], hlo: HloModule) -> None:
        self._names = names
        self._hlo = hlo
        self._pairs: dict[str, str] = {}
        """Why the start of something asynchronous is left out, for its end."""

    def of(self, thunks: list[Thunk], *, around: str = "") -> Iterator[LeftOut]:
        """Yields the left-out thunks among and inside `thunks`; `around` is the reason of the
        enclosing thunk."""
        for thunk in thunks:
            if thunk.kind == GRAPH:
                continue
            reason = around or self._reason(thunk)
            if thunk.counts:
                yield self._left_out(thunk, reason)
            # Thunks in a loop or a list have reasons of their own; thunks in others take the outer
            # one's.
            has_own = not thunk.counts or thunk.kind in _BRANCHING
            yield from self.of(thunk.children, around="" if has_own else reason)

    def _left_out(self, thunk: Thunk, reason: str) -> LeftOut:
        name = self._names.get(thunk.number, "")
        found = self._hlo.get(name)
        source = found.source
        return LeftOut(thunk.kind, name, found.operation, source.line, reason, source.library)

    def _reason(self, thunk: Thunk) -> str:
        if thunk.kind in _BRANCHING:
            return self._reason_of_branching(thunk)
        own = self._own_reason(thunk)
        if own is not None:
            return own
        if thunk.label == "condition":
            return "the condition of a loop that is not captured"
        return "too few beside each other for a graph"

    def _own_reason(self, thunk: Thunk) -> str | None:
        """Returns why a thunk like this one can be in no graph; None where it could be in one."""
        if thunk.kind in _ASYNC:
            return self._reason_of_asynchronous(thunk)
        if thunk.kind in _COLLECTIVES:
            return "a collective"
        if thunk.kind == "kCustomCall":
            return _reason_of_custom_call(self._hlo.get(self._names.get(thunk.number, "")))
        if thunk.kind in _LIBRARY:
            return "a library call that XLA does not capture"
        if thunk.kind in _HOST:
            return "a transfer to or from the host"
        if thunk.kind == _SLICES:
            return "a slice at a loop's counter, copied by the host"
        return None

    def _reason_of_asynchronous(self, thunk: Thunk) -> str:
        inside = [each for child in thunk.children if (each := self._own_reason(child))]
        pair = thunk.pair or ""
        reason = inside[0] if inside else "asynchronous, and its other end is not captured"
        return self._pairs.setdefault(pair, reason) if pair else reason

    def _reason_of_branching(self, thunk: Thunk) -> str:
        """Names the first thunk in a loop or branch that keeps it out of a graph."""
        for inside, inner in _with_place(thunk.children):
            if inside:
                continue
            reason = None if inner.kind in _BRANCHING else self._own_reason(inner)
            if reason is not None:
                name = self._names.get(inner.number, "")
                return f"in it: {name}, {reason}" if name else f"in it: {reason}"
        return "loops and branches are not captured"


def _reason_of_custom_call(call: HloInstruction) -> str | None:
    if call.target.startswith(OWN):
        return None
    if is_python_callback(call.target):
        return "a host callback"
    if call.target and not call.is_typed:
        return f"a legacy custom call, @{call.target}"
    return f"a custom call without the command-buffer trait, @{call.target}"
