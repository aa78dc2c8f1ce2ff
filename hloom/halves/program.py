"""One step, for arguments of one kind, as a forward and a backward program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom._jax.lowered import callbacks_of, devices_of
from hloom._jax.module_call import abstract, abstract_of_type, module_function
from hloom.halves.planned import planned
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.split import BACKWARD, COTANGENT, FORWARD, GRADIENT, PLACED, RESIDUAL

Leaves = Sequence[Any]


class SplitOutputError(ValueError):
    """An output of a step depends on its cotangents, so that no forward program can give it."""


@dataclass(frozen=True)
class Signature:
    """What a traced step takes and gives, as leaves of trees.

    Attributes:
      name: the function's.
      arguments: the shapes of its arguments' leaves.
      outputs: those of its outputs, and then of its auxiliary outputs.
      cotangents: those of the outputs' cotangents.
      joint: the step with its gradients, of (arguments, cotangents): (outputs, gradients).
    """

    name: str
    arguments: Sequence[jax.ShapeDtypeStruct]
    outputs: Sequence[jax.ShapeDtypeStruct]
    cotangents: Sequence[jax.ShapeDtypeStruct]
    joint: Callable[[Leaves, Leaves], tuple[Leaves, Leaves]]


@dataclass(frozen=True)
class Half:
    """One of the two programs.

    Attributes:
      run: the jitted function of the arguments that it reads.
      reads: the numbers of the step's arguments among these, which come first.
    """

    run: Any
    reads: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SplitProgram:
    """The two programs of a step.

    Attributes:
      forward: of arguments; gives the outputs, then the residuals.
      backward: of arguments, residuals, then cotangents; gives the gradients.
      donating: the same, which frees the residuals.
      residuals: by name the residuals' shapes.
      cotangents: the numbers of the cotangents that the backward program reads.
      outputs: how many outputs there are.
    """

    forward: Half
    backward: Half
    donating: Half
    residuals: dict[str, jax.ShapeDtypeStruct]
    cotangents: tuple[int, ...]
    outputs: int

    def inputs(self, half: Half, leaves: Leaves) -> list[Any]:
        """Those of a step's arguments that a program reads."""
        return [leaves[number] for number in half.reads]

    def cotangents_of(self, leaves: Leaves) -> list[Any]:
        """Those of the cotangents that the backward program reads."""
        return [leaves[number] for number in self.cotangents]


def split_program(signature: Signature, pipelines: Sequence[Pipeline]) -> SplitProgram:
    """Traces a step with its gradients, runs the best of some pipelines, whose last pass is
    `split`, and reads the two programs off.

    Raises PassError where a pass fails.
    """

    def joint(arguments: Leaves, cotangents: Leaves) -> tuple[Leaves, Leaves]:
        return signature.joint(arguments, cotangents)

    joint.__name__ = joint.__qualname__ = signature.name
    lowered = jax.jit(joint, keep_unused=True).lower(
        list(signature.arguments), list(signature.cotangents)
    )
    lowered_ir = lowered.compiler_ir()
    assert isinstance(lowered_ir, ir.Module)
    module = clone_module(lowered_ir)
    backend, devices = devices_of(lowered)
    gradients: Sequence[Any] = jax.tree.leaves(lowered.out_info[1])
    _mark(module, "arg_attrs", len(signature.cotangents), COTANGENT)
    _mark(module, "res_attrs", len(gradients), GRADIENT)
    code = planned(module, backend, devices, pipelines)
    return _Reader(code, signature, gradients, callbacks_of(lowered)).program()


def _mark(module: ir.Module, of: str, last: int, name: str) -> None:
    """Puts an attribute on the last arguments, or results, of a module's main."""
    main = walk.entry_function(module)
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    count = len(type_.inputs if of == "arg_attrs" else type_.results)
    given = walk.readable_attributes(main).get(of)
    with module.context:
        described = (
            list(given) if isinstance(given, ir.ArrayAttr) else [ir.DictAttr.get({})] * count
        )
        for number in range(count - last, count):
            known = walk.named(described[number])
            described[number] = ir.DictAttr.get(known | {name: ir.UnitAttr.get()})
        main.attributes[of] = ir.ArrayAttr.get(described)


class _Reader:
    """Reads the two programs off a module that `split` has written."""

    def __init__(
        self,
        code: ir.Module,
        signature: Signature,
        gradients: Sequence[Any],
        callbacks: tuple[Any, Any],
    ) -> None:
        self._code, self._signature, self._gradients = code, signature, gradients
        self._callbacks = callbacks
        main = walk.entry_function(code)
        ops = [view.operation for view in main.regions[0].blocks[0].operations]
        self._first, self._second, self._returned = ops
        self._mesh = _mesh_of(signature.arguments)

    def program(self) -> SplitProgram:
        """The two programs."""
        signature, outputs = self._signature, len(self._signature.outputs)
        self._check_outputs()
        forward = walk.functions(self._code)[_callee(self._first)]
        backward = walk.functions(self._code)[_callee(self._second)]
        residuals = self._residuals(forward)
        shapes = list(residuals.values())
        function = self._function(forward, [*signature.outputs, *shapes], FORWARD)
        placed = [None] * outputs + [shape.sharding for shape in shapes]
        run, reads = jax.jit(function, out_shardings=placed), self._read(self._first)
        count, of_backward = len(signature.arguments), self._read(self._second)
        again = tuple(number for number in of_backward if number < count)
        function = self._function(backward, self._gradients, BACKWARD)
        donated = tuple(range(len(again), len(again) + len(shapes)))
        return SplitProgram(
            Half(run, tuple(reads)),
            Half(jax.jit(function), again),
            Half(jax.jit(function, donate_argnums=donated), again),
            residuals,
            tuple(number - count for number in of_backward if number >= count),
            outputs,
        )

    def _function(self, half: ir.Operation, results: Sequence[Any], name: str) -> Any:
        """A half as a function of JAX; results are given by their shapes."""
        return module_function(
            _alone(self._code, half),
            [abstract(each) for each in results],
            f"{self._signature.name}_{name}",
            self._callbacks,
        )

    def _read(self, call: ir.Operation) -> list[int]:
        """The numbers of the step's arguments that a call reads."""
        return [
            ir.BlockArgument(value).arg_number
            for value in call.operands
            if isinstance(value.owner, ir.Block)
        ]

    def _check_outputs(self) -> None:
        """Raises SplitOutputError where an output of the step depends on the cotangents."""
        outputs = len(self._signature.outputs)
        for number, value in enumerate(self._returned.operands):
            if number < outputs and value.owner.operation == self._second:
                raise SplitOutputError(
                    f"behind the passes output {number} of {self._signature.name} depends on the "
                    "cotangents, as where a pass runs both halves in one loop. Leave that pass "
                    "out of passes="
                )

    def _residuals(self, forward: ir.Operation) -> dict[str, jax.ShapeDtypeStruct]:
        type_ = ir.FunctionType(ir.TypeAttr(forward.attributes["function_type"]).value)
        found = {}
        every = ir.ArrayAttr(forward.attributes["res_attrs"])
        for result, attributes in zip(type_.results, every, strict=True):
            described = walk.named(attributes)
            if RESIDUAL not in described:
                continue
            aval = abstract_of_type(result)
            placed = described.get(PLACED)
            sharding = None if placed is None else self._sharding(placed)
            found[ir.StringAttr(described[RESIDUAL]).value] = jax.ShapeDtypeStruct(
                aval.shape, aval.dtype, sharding=sharding
            )
        return found

    def _sharding(self, placed: ir.Attribute) -> jax.sharding.NamedSharding | None:
        """The sharding that the axes of each dimension give; None without a mesh that has them."""
        if self._mesh is None:
            return None
        dimensions = [
            tuple(ir.StringAttr(axis).value for axis in ir.ArrayAttr(axes))
            for axes in ir.ArrayAttr(placed)
        ]
        if not self._mesh.shape.keys() >= {name for names in dimensions for name in names}:
            return None
        spec = jax.sharding.PartitionSpec(*(names or None for names in dimensions))
        return jax.sharding.NamedSharding(self._mesh, spec)


def _mesh_of(shapes: Sequence[jax.ShapeDtypeStruct]) -> jax.sharding.Mesh | None:
    """The mesh of devices that a step's arguments lie on; None where there is none."""
    for shape in shapes:
        mesh = getattr(shape.sharding, "mesh", None)
        if isinstance(mesh, jax.sharding.Mesh):
            return mesh
    return None


def _alone(code: ir.Module, function: ir.Operation) -> ir.Module:
    """A module whose main is a copy of a function, with all else that its module declares."""
    with code.context, ir.Location.unknown():
        alone = ir.Module.create()
        main = function.clone(ip=False).operation
        main.attributes["sym_name"] = ir.StringAttr.get("main")
        main.attributes["sym_visibility"] = ir.StringAttr.get("public")
        halves = set(walk.functions(code).values())
        for view in code.body.operations:
            if view.operation not in halves:
                alone.body.append(view.operation.clone(ip=False).operation)
        alone.body.append(main)
    return alone


def _callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value
