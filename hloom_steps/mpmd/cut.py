"""Cuts a loss, for a batch of one kind, into the programs of stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir

from hloom._jax.module_call import abstract, abstract_of_type, module_function
from hloom.dumps.collect.divided import DividedStep
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import Table
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom_steps.halves.names import leaf_paths
from hloom_steps.halves.planned import planned
from hloom_steps.halves.program import TracedSignature, function_alone, lowered_joint, mark
from hloom_steps.mpmd.executables import Function
from hloom_steps.split.boundary import SplitError
from hloom_steps.stages import Stages as StagesPass
from hloom_steps.stages.joint import PARAMETER
from hloom_steps.stages.plan import StagesPlan
from hloom_steps.stages.programs import StagePrograms


@dataclass(frozen=True, eq=False)
class Call:
    """A loss and its arguments.

    Attributes:
      f: the loss, a function of parameters and a batch.
      leaves: the arguments' leaves, those of parameters first.
      tree: their tree, ((params, *batch), kwargs).
      paths: the names of the leaves.
      parameters: the number of leaves that are parameters.
    """

    f: Callable[..., Any]
    name: str
    leaves: Sequence[Any]
    tree: Any
    paths: Sequence[str]
    parameters: int

    @classmethod
    def of(
        cls, f: Callable[..., Any], params: Any, batch: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """Flattens the arguments; raises TypeError where one is no array, or a parameter is not
        differentiable."""
        args = (params, *batch)
        leaves, tree = jax.tree.flatten((args, kwargs))
        paths = leaf_paths(f, args, kwargs)
        count = len(jax.tree.leaves(params))
        name = getattr(f, "__name__", type(f).__name__).strip("<>")
        for number, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
            try:
                aval = abstract(leaf)
            except TypeError:
                raise TypeError(
                    f"hloom.stages: argument {path} of {name} is a {type(leaf).__name__}; wanted "
                    "arrays. Bind what is none by functools.partial."
                ) from None
            if number < count and not jnp.issubdtype(aval.dtype, jnp.inexact):
                raise TypeError(
                    f"hloom.stages: {path} is {aval.dtype}; only floating-point parameters are "
                    "differentiated. Pass it beside the parameters."
                )
        if not count:
            raise TypeError(f"hloom.stages: the first argument of {name} has no array in it.")
        return cls(f, name, leaves, tree, paths, count)

    @property
    def batch(self) -> dict[int, Any]:
        """Returns the leaves that are no parameters, by number."""
        return dict(enumerate(self.leaves[self.parameters :], self.parameters))


class Cut(NamedTuple):
    """A loss in stages.

    Attributes:
      stages: the programs.
      functions: each program as a function, by name.
      divided: the dump of the programs.
      aux: the tree of shapes of the auxiliary output of a microbatch; None where there is none.
    """

    stages: StagePrograms
    functions: dict[str, Function]
    divided: DividedStep
    aux: Any


class _Cut(StagesPass):
    """The pass, which keeps its plan, and adds tables on how the programs will run."""

    def telling(self, tables: Callable[[StagePrograms], Sequence[Table]]) -> _Cut:
        """Returns this pass with these tables added to its plans."""
        self.__dict__["more"] = tables
        return self

    def plan(self, module: ir.Module, target: Target) -> StagesPlan:
        found = super().plan(module, target)
        if found.stages is not None:
            found = dataclasses.replace(found, more=tuple(self.__dict__["more"](found.stages)))
        self.__dict__["kept"] = found
        return found

    @property
    def kept(self) -> StagePrograms:
        """Returns the programs of the last module that it planned."""
        plan = self.__dict__["kept"]
        assert isinstance(plan, StagesPlan)
        if plan.stages is None:
            raise ValueError(f"hloom.stages: {plan.refusal}.")
        return plan.stages


def cut(
    call: Call,
    shapes: Mapping[int, jax.ShapeDtypeStruct],
    before: Pipeline,
    stages: StagesPass,
    device: jax.Device,
    tables: Callable[[StagePrograms], Sequence[Table]] = lambda _: (),
    *,
    has_aux: bool = False,
) -> Cut:
    """Returns the programs of a loss, and each as a function.

    Args:
      call: the loss with its arguments.
      shapes: the shapes of the batch's leaves, by number, for one microbatch on one device.
      before: the passes that run on the whole step before the cut.
      stages: the pass that cuts it.
      device: one of the devices that the step runs on.
      tables: additional tables for the plan of given programs.
      has_aux: whether the loss returns (loss, auxiliary output).

    Raises TypeError where the loss does not return a number, ValueError where it cannot be cut.
    """
    given = [abstract(leaf) for leaf in call.leaves[: call.parameters]]
    where = jax.sharding.SingleDeviceSharding(device)
    arguments = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=where)
        for each in (*given, *shapes.values())
    ]

    def loss(leaves: Sequence[Any]) -> tuple[Callable[[Any], Any], Any]:
        (params, *batch), kwargs = jax.tree.unflatten(call.tree, leaves)
        return lambda params: call.f(params, *batch, **kwargs), params

    def value(leaves: Sequence[Any]) -> Any:
        f, params = loss(leaves)
        return f(params)

    y, aux = jax.eval_shape(value, arguments), None
    if has_aux:
        if not isinstance(y, tuple) or len(y) != 2:
            raise TypeError(
                f"hloom.stages: has_aux=True: {call.name} gives {_described(y)}; wanted a pair, "
                "the scalar loss and the auxiliary output."
            )
        y, aux = y
        _check_aux(call.name, aux)
    if not hasattr(y, "shape") or y.shape or not jnp.issubdtype(y.dtype, jnp.floating):
        raise TypeError(
            f"hloom.stages: {call.name} gives {_described(y)}; wanted a scalar loss, the mean or "
            "the sum over the examples of the batch. A loss with an auxiliary output wants "
            "has_aux=True."
        )

    def joint(leaves: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, Any]:
        given: tuple[Any, ...] = jax.vjp(*loss(leaves), has_aux=has_aux)  # type: ignore[call-overload]
        y, pullback, *aux = given
        return [y, *jax.tree.leaves(aux)], jax.tree.leaves(pullback(cotangents[0]))

    y = jax.ShapeDtypeStruct(y.shape, y.dtype)
    outputs = [y, *jax.tree.leaves(aux)]
    lowered = lowered_joint(TracedSignature(call.name, arguments, outputs, [y], (), joint))
    mark(lowered.module, "arg_attrs", range(call.parameters), PARAMETER)
    options = {each.name: getattr(stages, each.name) for each in dataclasses.fields(stages)}
    last = _Cut(**options).telling(tables)
    pipeline = Pipeline((*before.passes, last))
    try:
        found = planned(
            lowered.module, lowered.backend, lowered.devices, [pipeline], "hloom.stages"
        )
    except PassError as failure:
        if isinstance(failure.__cause__, SplitError):
            raise ValueError(f"hloom.stages: {call.name}: {failure.__cause__}.") from None
        raise
    assert found.divided is not None
    functions = _functions(call.name, last.kept, lowered.callbacks)
    return Cut(last.kept, functions, found.divided, aux)


def _check_aux(name: str, aux: Any) -> None:
    """Raises TypeError where an auxiliary output cannot be stacked."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(aux):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError(
                f"hloom.stages: the auxiliary output{jax.tree_util.keystr(path)} of {name} is "
                f"{leaf.dtype}; wanted arrays of numbers, as jax.random.key_data gives of a key."
            )


def _functions(name: str, stages: StagePrograms, callbacks: tuple[Any, Any]) -> dict[str, Function]:
    found = {}
    by_name = walk.functions(stages.code)
    for program in stages.programs:
        results = [abstract_of_type(each) for each in program.results]
        alone = function_alone(stages.code, by_name[program.function])
        found[program.function] = Function(
            f"{name}_{program.function}",
            module_function(alone, results, program.function, callbacks),
            tuple(_shape(each) for each in program.arguments),
            tuple(_shape(each) for each in program.results),
        )
    return found


def _shape(type_: ir.Type) -> jax.ShapeDtypeStruct:
    aval = abstract_of_type(type_)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _described(y: Any) -> str:
    leaves = jax.tree.leaves(y)
    if len(leaves) == 1 and leaves[0] is y:
        return f"{y.dtype}[{','.join(map(str, y.shape))}]"
    return f"a {type(y).__name__}"
