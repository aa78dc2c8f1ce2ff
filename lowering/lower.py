"""Lowers the marks of a module to kernel calls, or to their decompositions.

Before:

    %1 = stablehlo.composite "hloom.barrier" %0 {decomposition = @hloom.barrier.0,
        version = 1 : i32, composite_attributes = {channel = 7 : i64, …}}
        : (tensor<ui32>) -> tensor<ui32>

After, on the CPU, with all devices in one process:

    %1 = stablehlo.custom_call @hloom.barrier.v1(%0) {api_version = 4 : i32, backend_config = {
        channel = 7 : i64, …}, has_side_effect = true, …} : (tensor<ui32>) -> tensor<ui32>

Each platform has a table of marks with kernels. A mark that is not in it is replaced by its
decomposition, which may contain marks. Composites that are no marks stay.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from jax.extend.mlir import ir, passmanager

from hloom.passes.ir import marks, mesh, walk

from .choosers import CHOOSERS
from .kernel_calls import (
    Choice,
    Decomposition,
    KernelCall,
    LoweringError,
    Rewrite,
    Site,
    decomposition_name,
    emit,
    inline_decomposition,
    rewrite,
)
from .placement import Placement

_log = logging.getLogger("hloom.lowering")


@dataclass(frozen=True)
class MarkLowering:
    """The lowering of some marks of a module.

    Attributes:
      mark: the marks' name.
      became: "kernel", "decomposition" or "rewrite".
      target: the FFI target that they call now; None where they call none.
      why: the reason, as text for the user.
      warning: what the user loses, and the remedy; empty where nothing.
    """

    mark: str
    became: Literal["kernel", "decomposition", "rewrite"]
    target: str | None
    why: str
    warning: str = ""

    @classmethod
    def of(cls, site: Site, choice: Choice) -> MarkLowering:
        """Returns the decision of a choice."""
        match choice:
            case KernelCall():
                return cls(site.name, "kernel", choice.target, choice.why)
            case Decomposition():
                return cls(site.name, "decomposition", None, choice.why, choice.warning)
            case Rewrite():
                return cls(site.name, "rewrite", None, choice.why)

    def __str__(self) -> str:
        return f"{self.mark} -> {self.target or self.became}: {self.why}"


@dataclass(frozen=True)
class Lowered:
    """The lowering of the marks of a module.

    Attributes:
      decisions: the number of marks by lowering, in program order.
    """

    decisions: Mapping[MarkLowering, int]

    @property
    def marks(self) -> int:
        """The number of marks."""
        return sum(self.decisions.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the decisions, each once."""
        return tuple(dict.fromkeys(each.warning for each in self.decisions if each.warning))

    @property
    def targets(self) -> tuple[str, ...]:
        """The FFI targets that the module calls now, sorted: to register before it compiles."""
        return tuple(sorted({each.target for each in self.decisions if each.target is not None}))


def lower(
    module: ir.Module, placement: Placement, trace: Callable[..., str] | None = None
) -> Lowered:
    """Lowers all marks of the module, in place. A module without marks does not change.

    ``trace`` traces JAX's kernels, as `Site` has it.

    Raises LoweringError if a mark has an unknown version or does not fit the placement, or if
    decompositions contain themselves.
    """
    lowerer = _Lowerer(module, placement, trace)
    with module.context, ir.Location.unknown():
        lowerer.lower_functions()
        if lowerer.decisions:
            passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
    lowered = Lowered(lowerer.decisions)
    name = walk.symbol(module.operation, "module")
    for decision, count in lowered.decisions.items():
        _log.info("%s, %s: %d x %s", name, placement, count, decision)
    return lowered


class _Lowerer:
    def __init__(
        self, module: ir.Module, placement: Placement, trace: Callable[..., str] | None
    ) -> None:
        self._trace = trace
        self.decisions: Counter[MarkLowering] = Counter()
        self._module = module
        self._placement = placement
        self._choosers = CHOOSERS.get(placement.platform, {})
        self._functions = walk.functions(module)

    def lower_functions(self) -> None:
        marks_by_function = {
            name: list(marks.marks_in(function)) for name, function in self._functions.items()
        }
        # A decomposition is lowered where it is used: the kernel for a mark depends on its place.
        decompositions = {
            decomposition_name(mark) for found in marks_by_function.values() for mark in found
        }
        for name, found in marks_by_function.items():
            if name not in decompositions:
                for mark in found:
                    self._lower(mark, ())

    def _function(self, name: str) -> ir.Operation:
        """A function of the module; rewrites may have added some."""
        if name not in self._functions:
            self._functions = walk.functions(self._module)
        return self._functions[name]

    def _lower(self, mark: ir.Operation, inside: tuple[str, ...]) -> None:
        _check_version(mark)
        is_manual = mesh.is_manual(mark, self._placement.partitions)
        site = Site(mark, self._module, is_manual, self._trace)
        choice = self._choose(site)
        self.decisions[MarkLowering.of(site, choice)] += 1
        if isinstance(choice, KernelCall):
            emit(choice, mark)
            return
        if isinstance(choice, Rewrite):
            operations = rewrite(choice, mark)
        else:
            name = decomposition_name(mark)
            inside = _entering(name, inside)
            operations = inline_decomposition(mark, self._function(name))
        written = (each for op in operations for each in (op, *walk.operations(op)))
        for inner in [each for each in written if marks.mark_name(each) is not None]:
            self._lower(inner, inside)

    def _choose(self, site: Site) -> Choice:
        chooser = self._choosers.get(site.name)
        if chooser is not None:
            return chooser(site, self._placement)
        platform = self._placement.platform
        if site.name == marks.TOKEN:
            raise LoweringError(
                f"{marks.TOKEN} has no kernel on {platform}: its decomposition is a constant, with "
                "which XLA would drop every barrier that hangs on it"
            )
        return Decomposition(f"no kernel on {platform}")


def _entering(name: str, inside: tuple[str, ...]) -> tuple[str, ...]:
    """The decompositions that an operation is inside of, with ``name`` added."""
    if name in inside:
        chain = [*inside[inside.index(name) :], name]
        raise LoweringError(
            f"decomposition @{name} contains itself: {' -> '.join(f'@{link}' for link in chain)}"
        )
    return (*inside, name)


def _check_version(mark: ir.Operation) -> None:
    # StableHLO leaves the attribute out where it is 0.
    attributes = mark.attributes
    version = ir.IntegerAttr(attributes["version"]).value if "version" in attributes else 0
    if version != marks.VERSION:
        name = ir.StringAttr(attributes["name"]).value
        raise LoweringError(
            f"mark '{name}' has version {version}, and this hloom knows version "
            f"{marks.VERSION}: the module was written by another hloom"
        )
