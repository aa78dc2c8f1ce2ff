"""The lowering of each mark on the CPU.

Devices of one process synchronize in a rendezvous. Devices of several processes exchange tokens
through XLA; the first token comes from a custom call, so that XLA cannot fold the exchange away.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hloom.passes.ir import marks

from . import between_processes, ragged
from .collective import kernel_attributes, rendezvous_of
from .kernel_calls import Choice, Chooser, Decomposition, KernelCall, Site
from .placement import Placement


def _token(site: Site, placement: Placement) -> Choice:
    return KernelCall("hloom.token.v1", "a value that XLA cannot know")


def _add_dependency(site: Site, placement: Placement) -> Choice:
    if not site.is_manual:
        return Decomposition("the partitioner can split a select")
    values = len(site.mark.results)
    return KernelCall(
        "hloom.tie.v1",
        "values keep their buffers",
        aliases={value: value + 1 for value in range(values)},
    )


def _after_all(site: Site, placement: Placement) -> Choice:
    if not site.is_manual:
        return Decomposition("the partitioner can split a select")
    return KernelCall("hloom.after.v1", "the token keeps its buffer", aliases={0: 0})


def _barrier(site: Site, placement: Placement) -> Choice:
    where = rendezvous_of(site, placement)
    if placement.spans_processes:
        return between_processes.choose_barrier(site, where)
    return KernelCall(
        "hloom.barrier.v1",
        "a rendezvous of the devices of this process",
        attributes=kernel_attributes(where, placement),
        # Results take over their operands' buffers; other operands are kept alive only.
        aliases={result: result for result in range(len(site.mark.results))},
        has_side_effect=site.is_manual,
    )


CHOOSERS: Mapping[str, Chooser] = MappingProxyType(
    {
        marks.TOKEN: _token,
        marks.ADD_DEPENDENCY: _add_dependency,
        marks.AFTER_ALL: _after_all,
        marks.BARRIER: _barrier,
        marks.RAGGED_ALL_TO_ALL: ragged.choose_cpu,
    }
)
"""By mark."""
