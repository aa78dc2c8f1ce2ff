"""Replaces marks by what they mean, where no kernel serves them.

Before:

    %1 = stablehlo.composite "hloom.double" %0 {decomposition = @double, version = 1 : i32} …
    func.func private @double(%a) { %s = stablehlo.add %a, %a  return %s }

After:

    %1 = stablehlo.add %0, %0

XLA would inline the decompositions too. Done here, the module that feeds JAX's cache key holds
no trace of the marks: two specs that differ in marks alone compile once.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.mlir import ir, passmanager

from hloom.passes import marks
from hloom.runtime import kernel_target

_COMPOSITE = "stablehlo.composite"


class LoweringError(ValueError):
    """A mark that cannot be lowered; the text names it and says why."""


def decompose_marks(module: ir.Module, platform: str) -> int:
    """Inlines the decomposition of every mark that no kernel of `platform` serves, in place.

    Marks inside decompositions are inlined as well; composites of others stay. Gives the number
    of marks that were inlined; 0 means that nothing was touched. Raises LoweringError where a
    mark has a version that this hloom does not know, or no decomposition that can be inlined.
    """
    decomposer = _Decomposer(module, platform)
    with module.context, ir.Location.unknown():
        for name in decomposer.functions:
            decomposer.decompose_function(name)
        if decomposer.inlined:
            passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
    return decomposer.inlined


class _Decomposer:
    def __init__(self, module: ir.Module, platform: str) -> None:
        self._platform = platform
        self.functions = {
            ir.StringAttr(operation.attributes["sym_name"]).value: operation.operation
            for operation in module.body.operations
            if operation.operation.name == "func.func"
        }
        self.inlined = 0
        self._done: set[str] = set()
        self._open: list[str] = []

    def decompose_function(self, name: str) -> None:
        """Leaves no mark in this function that is to be decomposed."""
        if name in self._done:
            return
        if name in self._open:
            raise LoweringError(f"decomposition @{name} contains itself: {self._chain(name)}")
        self._open.append(name)
        for composite in list(_composites(self.functions[name])):
            if self._is_to_be_decomposed(composite):
                self._inline(composite)
        self._open.pop()
        self._done.add(name)

    def _is_to_be_decomposed(self, composite: ir.Operation) -> bool:
        mark = ir.StringAttr(composite.attributes["name"]).value
        return mark.startswith(marks.PREFIX) and kernel_target(self._platform, mark) is None

    def _inline(self, composite: ir.Operation) -> None:
        _check_version(composite)
        callee = ir.FlatSymbolRefAttr(composite.attributes["decomposition"]).value
        self.decompose_function(callee)
        # A clone for each use: its operations are moved out of it, to where the mark stands.
        function = self.functions[callee].clone(ip=False)
        [block] = function.regions[0].blocks
        for argument, operand in zip(block.arguments, composite.operands, strict=True):
            argument.replace_all_uses_with(operand)
        *body, terminator = list(block.operations)
        for operation in body:
            operation.operation.move_before(composite)
        for result, value in zip(composite.results, terminator.operands, strict=True):
            result.replace_all_uses_with(value)
        composite.erase()
        function.erase()
        self.inlined += 1

    def _chain(self, name: str) -> str:
        return " -> ".join(f"@{link}" for link in [*self._open[self._open.index(name) :], name])


def _check_version(composite: ir.Operation) -> None:
    # StableHLO leaves the attribute out where it is 0.
    attributes = composite.attributes
    version = ir.IntegerAttr(attributes["version"]).value if "version" in attributes else 0
    if version != marks.VERSION:
        mark = ir.StringAttr(attributes["name"]).value
        raise LoweringError(
            f"mark '{mark}' has version {version}, and this hloom knows version "
            f"{marks.VERSION}: the module was written by another hloom"
        )


def _composites(operation: ir.Operation) -> Iterator[ir.Operation]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == _COMPOSITE:
                    yield inner.operation
                else:
                    yield from _composites(inner.operation)
