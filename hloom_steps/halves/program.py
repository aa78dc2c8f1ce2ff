"""Traces one step, for arguments of one kind, and reads off its forward program and one or two
backward programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom._jax.lowered import callbacks_of, devices_of
from hloom._jax.module_call import abstract, abstract_of_type, module_function
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_steps.halves.host import HostPlacement, with_copies
from hloom_steps.halves.planned import planned
from hloom_steps.split.boundary import COTANGENT, GRADIENT, WEIGHT_GRADIENT
from hloom_steps.split.rewrite import (
    BACKWARD,
    FORWARD,
    OF_INPUTS,
    OF_WEIGHTS,
    PLACED,
    RESIDUAL,
)

Leaves = Sequence[Any]


class SplitOutputError(ValueError):
    """An output of a step depends on its cotangents, so that no forward program can give it."""


@dataclass(frozen=True)
class TracedSignature:
    """The arguments and results of a traced step, as leaves of trees.

    Attributes:
      name: the function's name.
      arguments: the shapes of its arguments' leaves.
      outputs: the shapes of its outputs, then of its auxiliary outputs.
      cotangents: the shapes of the outputs' cotangents.
      weights: the numbers of the gradients that a second backward program returns.
      joint: the step with its gradients, a function from (arguments, cotangents) to (outputs,
        gradients).
    """

    name: str
    arguments: Sequence[jax.ShapeDtypeStruct]
    outputs: Sequence[jax.ShapeDtypeStruct]
    cotangents: Sequence[jax.ShapeDtypeStruct]
    weights: Sequence[int]
    joint: Callable[[Leaves, Leaves], tuple[Leaves, Leaves]]


@dataclass(frozen=True)
class Half:
    """One of the programs.

    Attributes:
      run: the jitted function; its parameters are the arguments, residuals and cotangents that it
        reads.
      donating: the function that also donates the residuals that no later program reads.
      reads: the numbers of the step's arguments that it reads, which come first.
      residuals: the names of the residuals, which come next.
      cotangents: the numbers of the cotangents, which come last.
      results: the shapes of its results.
    """

    run: Any
    donating: Any
    reads: tuple[int, ...]
    residuals: tuple[str, ...]
    cotangents: tuple[int, ...]
    results: tuple[Any, ...]

    def jitted(self, *, donate: bool) -> Any:
        """Returns one of the two functions."""
        return self.donating if donate else self.run


@dataclass(frozen=True, eq=False)
class SplitProgram:
    """The programs of a step.

    Attributes:
      forward: the forward program, which returns the outputs, then the residuals.
      later: the backward program, which returns the gradients; or the program of the inputs'
        gradients, which returns these, then the values that it passes on, and the program of the
        weights' gradients.
      residuals: the residuals' shapes, by name.
      handed: the shapes of the values that the first backward program passes to the second one, by
        name.
    """

    forward: Half
    later: tuple[Half, ...]
    residuals: dict[str, jax.ShapeDtypeStruct]
    handed: dict[str, jax.ShapeDtypeStruct]

    @property
    def backward(self) -> Half:
        """Returns the first backward program, of one or two."""
        return self.later[0]

    @property
    def weights(self) -> Half:
        """Returns the program of the weights' gradients, if two exist."""
        return self.later[1]

    @property
    def read_again(self) -> list[int]:
        """Returns the numbers of the step's arguments that backward programs read."""
        return sorted({number for half in self.later for number in half.reads})

    def forward_inputs(self, leaves: Leaves) -> list[Any]:
        """Returns the arguments that the forward program reads."""
        return [leaves[number] for number in self.forward.reads]


def split_program(
    signature: TracedSignature, pipelines: Sequence[Pipeline], host_bytes: int | None = None
) -> SplitProgram:
    """Traces a step with its gradients, runs the best of some pipelines, whose last pass is
    `split`, and reads the programs off.

    With ``host_bytes``, residuals of at least that many bytes on a device are in host memory.
    Raises PassError where a pass fails, HostMemoryError where the devices cannot address host
    memory.
    """

    joint = lowered_joint(signature)
    module, count = joint.module, len(signature.outputs)
    mark(module, "res_attrs", [count + each for each in signature.weights], WEIGHT_GRADIENT)
    host = None if host_bytes is None else HostPlacement(joint.devices, host_bytes)
    code = planned(module, joint.backend, joint.devices, pipelines).code
    return _Reader(code, signature, joint.gradients, joint.callbacks, host).program()


@dataclass(frozen=True, eq=False)
class LoweredStep:
    """A step with its gradients, lowered.

    Attributes:
      module: the module from (arguments, cotangents) to (outputs, gradients); cotangents and
        gradients are marked.
      gradients: the shapes of the gradients.
      callbacks: the callbacks of its custom calls, from `callbacks_of`.
    """

    module: ir.Module
    gradients: Sequence[Any]
    backend: Any
    devices: Any
    callbacks: tuple[Any, Any]


def lowered_joint(signature: TracedSignature) -> LoweredStep:
    """Traces a step with its gradients, and marks cotangents and gradients."""

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
    mark(module, "arg_attrs", range(-len(signature.cotangents), 0), COTANGENT)
    mark(module, "res_attrs", range(-len(gradients), 0), GRADIENT)
    return LoweredStep(module, gradients, backend, devices, callbacks_of(lowered))


def mark(module: ir.Module, of: str, numbers: Iterable[int], name: str) -> None:
    """Sets an attribute on arguments, or results, of a module's main."""
    main = walk.entry_function(module)
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    count = len(type_.inputs if of == "arg_attrs" else type_.results)
    given = walk.readable_attributes(main).get(of)
    with module.context:
        described = (
            list(given) if isinstance(given, ir.ArrayAttr) else [ir.DictAttr.get({})] * count
        )
        for number in numbers:
            known = walk.named(described[number])
            described[number] = ir.DictAttr.get(known | {name: ir.UnitAttr.get()})
        main.attributes[of] = ir.ArrayAttr.get(described)


class _Reader:
    """Reads the programs of a module that `split` has written."""

    def __init__(
        self,
        code: ir.Module,
        signature: TracedSignature,
        gradients: Sequence[Any],
        callbacks: tuple[Any, Any],
        host: HostPlacement | None,
    ) -> None:
        self._code, self._signature, self._gradients = code, signature, gradients
        self._callbacks, self._host = callbacks, host
        main = walk.entry_function(code)
        *self._calls, self._returned = [
            view.operation for view in main.regions[0].blocks[0].operations
        ]
        self._mesh = _mesh_of(signature.arguments)
        self._one_device = _one_device(signature.arguments)
        self._on_host: set[str] = set()
        """The names of the residuals that are in the host's memory."""
        self._residuals = [self._residuals_of(self._function_of(call)) for call in self._calls]

    def program(self) -> SplitProgram:
        """Returns the programs."""
        signature = self._signature
        self._check_outputs()
        residuals, *others = self._residuals
        handed = others[0] if len(self._calls) > 2 else {}
        forward = self._half(0, FORWARD, signature.outputs)
        weights = set(signature.weights)
        apart: list[list[Any]] = [[], []] if len(self._calls) > 2 else [[]]
        for number, gradient in enumerate(self._gradients):
            apart[number in weights].append(gradient)
        names = [BACKWARD] if len(apart) == 1 else [OF_INPUTS, OF_WEIGHTS]
        later = [
            self._half(number, name, results)
            for number, (name, results) in enumerate(zip(names, apart, strict=True), 1)
        ]
        return SplitProgram(forward, tuple(later), residuals, handed)

    def _half(self, place: int, name: str, given: Sequence[Any]) -> Half:
        """Returns the program of a call; ``given`` are the shapes of the step's results that it
        returns."""
        call = self._calls[place]
        arguments, residuals, cotangents = self._read(call)
        crossing = list(self._residuals[place].values())
        results = (*given, *crossing)
        function = module_function(
            function_alone(self._code, self._function_of(call)),
            [abstract(each) for each in results],
            f"{self._signature.name}_{name}",
            self._callbacks,
        )
        if self._host is not None:
            names = self._residuals[place].keys()
            on_host = [False] * len(given) + [name in self._on_host for name in names]
            function = with_copies(function, on_host)
        first = len(arguments)
        read_later = {each for later in self._calls[place + 1 :] for each in self._read(later)[1]}
        donated = [n for n, each in enumerate(residuals, first) if each not in read_later]
        placed = [None] * len(given) + [shape.sharding for shape in crossing]
        return Half(
            jax.jit(function, out_shardings=placed),
            jax.jit(function, out_shardings=placed, donate_argnums=donated),
            tuple(arguments),
            tuple(residuals),
            tuple(cotangents),
            results,
        )

    def _function_of(self, call: ir.Operation) -> ir.Operation:
        symbol = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        return walk.functions(self._code)[symbol]

    def _read(self, call: ir.Operation) -> tuple[list[int], list[str], list[int]]:
        """Returns the operands of a call: numbers of arguments, names of residuals, numbers of
        cotangents."""
        arguments: list[int] = []
        residuals: list[str] = []
        cotangents: list[int] = []
        count = len(self._signature.arguments)
        for value in call.operands:
            if isinstance(value.owner, ir.Block):
                number = ir.BlockArgument(value).arg_number
                if number < count:
                    arguments.append(number)
                else:
                    cotangents.append(number - count)
            else:
                place = self._calls.index(value.owner.operation)
                names = list(self._residuals[place])
                given = len(self._calls[place].results) - len(names)
                residuals.append(names[ir.OpResult(value).result_number - given])
        return arguments, residuals, cotangents

    def _check_outputs(self) -> None:
        """Raises SplitOutputError where an output of the step depends on the cotangents."""
        outputs = len(self._signature.outputs)
        for number, value in enumerate(self._returned.operands):
            if number < outputs and value.owner.operation in self._calls[1:]:
                raise SplitOutputError(
                    f"behind the passes output {number} of {self._signature.name} depends on the "
                    "cotangents, as where a pass runs both halves in one loop. Leave that pass "
                    "out of passes="
                )

    def _residuals_of(self, function: ir.Operation) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of the values that a function passes to later ones, by name."""
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        found: dict[str, jax.ShapeDtypeStruct] = {}
        every = walk.readable_attributes(function).get("res_attrs")
        if not isinstance(every, ir.ArrayAttr):
            return found
        for result, attributes in zip(type_.results, every, strict=True):
            described = walk.named(attributes)
            if RESIDUAL not in described:
                continue
            aval = abstract_of_type(result)
            placed = described.get(PLACED)
            sharding = self._one_device if placed is None else self._sharding(placed)
            name = ir.StringAttr(described[RESIDUAL]).value
            if self._host is not None and self._host.takes(aval, sharding):
                self._on_host.add(name)
                sharding = self._host.sharding(sharding)
            found[name] = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        return found

    def _sharding(self, placed: ir.Attribute) -> jax.sharding.NamedSharding | None:
        """Returns the sharding by the axes of each dimension; None without a mesh that has them."""
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
    """Returns the mesh of the step's arguments; None where they have none."""
    for shape in shapes:
        mesh = getattr(shape.sharding, "mesh", None)
        if isinstance(mesh, jax.sharding.Mesh):
            return mesh
    return None


def _one_device(shapes: Sequence[jax.ShapeDtypeStruct]) -> jax.sharding.Sharding | None:
    """Returns the single-device sharding of the step's arguments; None for any other."""
    devices = {device for shape in shapes for device in getattr(shape.sharding, "device_set", ())}
    return jax.sharding.SingleDeviceSharding(devices.pop()) if len(devices) == 1 else None


def function_alone(code: ir.Module, function: ir.Operation) -> ir.Module:
    """Returns a module whose main is a copy of a function, with all other symbols of its module."""
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
