"""`hloom.split`: a differentiated function as a forward and a backward function."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hloom._jax.module_call import abstract, is_traced, trace_state
from hloom.halves.program import (
    Half,
    Signature,
    SplitOutputError,
    SplitProgram,
    split_program,
)
from hloom.halves.residuals import Residuals
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.options import Bytes, SpellingError, parse_bytes
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.text import pluralize
from hloom.passes.split import Split, SplitError
from hloom.plugin import flag_value
from hloom.policy import first_time, warn

_DEFAULT_PASSES = ("remat", "off")
"""Passes before the split where neither the caller nor the flag names any: `remat` decides what
scans stack, and where the backward program computes it again. Under a bound, which the split may
hold only by what scans stack, without it, too; the better one is taken."""


def split(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    residuals: int | str | None = None,
    passes: str | None = None,
) -> tuple[Forward, Backward]:
    """A function's value and its gradients as two programs, with the fewest bytes between them.

    `y, res = fwd(*args, **kwargs)` gives what `f` gives, and residuals; `bwd(res, cotangent)` gives
    the gradients, as `jax.vjp` does. Both are compiled as `jax.jit` does, and run on the devices of
    their arguments. The residuals are a minimum cut of the step; of the arguments the backward
    program reads the caller's own arrays. Inside of a `jit`, `vmap` or `grad` of the caller's the
    two are parts of that program, which has no boundary there.

    Args:
      f: gives an array, or a tree of them, of floating-point numbers; it may have no effects.
      argnums: the arguments to differentiate, one or several, by position. Gradients are a tuple
        in the same order where it is a sequence.
      has_aux: `f` gives (output, auxiliary output), and `fwd` (y, res, aux).
      residuals: the bytes that the residuals may take of one device, as 1600 * 2**20 or "1600MiB".
        Matrix products are then computed again, as few as hold it. Without it no product is.
      passes: what runs on the step before it is split, as "fit{budget=60GiB}"; by default the spec
        of `jax_hloom`, and "remat" where that is not set; under a bound "off", where less is
        computed again then.

    Raises TypeError where an argument to differentiate, or an output, is not of floating-point
    numbers; ValueError where the step cannot be split, or the bound is below what can be reached;
    SpecError for a mistaken spec; PassError where a pass fails.
    """
    if not callable(f):
        raise TypeError(f"hloom.split: wanted a function, got {type(f).__name__}.")
    step = _Step(f, _numbers(argnums), isinstance(argnums, int), has_aux, _bound(residuals), passes)
    return Forward(step), Backward(step)


class Forward:
    """The forward function that `split` gives."""

    def __init__(self, step: _Step) -> None:
        self._step = step
        functools.update_wrapper(self, step.f, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """(y, residuals), or with auxiliary outputs (y, residuals, aux)."""
        call = _Call.of(self._step, args, kwargs)
        if is_traced(call.leaves):
            return call.traced()
        planned = call.planned()
        program = planned.program
        results = program.forward.run(*program.inputs(program.forward, call.leaves))
        return planned.forward_result(call.leaves, results)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """What a call gives, with a `jax.ShapeDtypeStruct` for each array."""
        call = _Call.of(self._step, args, kwargs)
        planned = call.planned()
        shapes = [*planned.outputs, *planned.program.residuals.values()]
        return planned.forward_result(call.shapes, shapes)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The forward program, lowered for arguments, or `jax.ShapeDtypeStruct`s of such."""
        call = _Call.of(self._step, args, kwargs)
        program = call.planned().program
        return program.forward.run.lower(*program.inputs(program.forward, call.shapes))


class Backward:
    """The backward function that `split` gives."""

    def __init__(self, step: _Step) -> None:
        self._step = step
        self.__name__ = f"{step.name}_backward"

    def __call__(self, residuals: Residuals, cotangent: Any, *, donate: bool = False) -> Any:
        """The gradients of a call of `fwd`, given its residuals and the cotangent of its output.

        With `donate` the residuals' buffers are free for the gradients, and gone afterwards; the
        caller's arguments stay.
        """
        planned = self._planned(residuals)
        return planned.backward(residuals, planned.checked(cotangent), donate=donate)

    def lower(self, residuals: Residuals, cotangent: Any, *, donate: bool = False) -> Any:
        """The backward program, lowered for arrays, or `jax.ShapeDtypeStruct`s of such."""
        planned = self._planned(residuals)
        if not isinstance(planned, _Planned):
            raise ValueError("hloom.split: residuals that were traced inside a jit have no program")
        half, inputs = planned.inputs(residuals, planned.checked(cotangent), donate=donate)
        return half.run.lower(*inputs)

    def _planned(self, residuals: Residuals) -> _Planned | _Traced:
        if not isinstance(residuals, Residuals):
            raise TypeError(
                f"hloom.split: {self.__name__} wants the residuals that its fwd gave, got "
                f"{type(residuals).__name__}."
            )
        if not residuals.is_of(self._step):
            raise ValueError(
                f"hloom.split: {self.__name__} got residuals of another fwd; wanted those of the "
                "fwd that came with it from one hloom.split."
            )
        found: _Planned | _Traced = residuals.program
        return found


class _Step:
    """What `split` was called with, and the programs for each kind of arguments."""

    def __init__(
        self,
        f: Callable[..., Any],
        numbers: tuple[int, ...],
        is_single: bool,
        has_aux: bool,
        bound: Bytes | None,
        passes: str | None,
    ) -> None:
        self.f, self.numbers, self.is_single = f, numbers, is_single
        self.has_aux, self.bound, self.passes = has_aux, bound, passes
        self.name = getattr(f, "__name__", type(f).__name__).strip("<>")
        self._known: dict[Any, _Planned] = {}
        self._lock = threading.Lock()
        self.pipelines()

    def pipelines(self) -> tuple[Pipeline, ...]:
        """The passes that may run on the step, the split last. Raises SpecError."""
        spec, source = self.passes, "hloom.split: passes"
        if spec is None:
            spec, source = flag_value(), "JAX_HLOOM"
        if spec is None or (spec == "" and self.passes is None):
            specs = _DEFAULT_PASSES[: 1 if self.bound is None else None]
        else:
            specs = (spec or "off",)
        found = [Pipeline.parse(each, source=source).passes for each in specs]
        if any(isinstance(each, Split) for before in found for each in before):
            raise SpecError(
                f"{source}={spec!r}: the split comes last by itself; its bound is residuals=."
            )
        return tuple(Pipeline((*before, Split(self.bound))) for before in found)

    def planned(self, call: _Call) -> _Planned:
        """The programs for a call's kind of arguments. Raises what `split` says."""
        pipelines = self.pipelines()
        shapes = tuple(call.shapes)
        key = call.tree, shapes, tuple(map(abstract, shapes)), trace_state(), pipelines
        with self._lock:
            found = self._known.get(key)
        if found is None:
            found = call.plan(pipelines)
            with self._lock:
                found = self._known.setdefault(key, found)
        return found

    def result(self, gradients: Any) -> Any:
        """The gradients as the caller asked for them."""
        return gradients[0] if self.is_single else gradients


@dataclass(frozen=True)
class _Call:
    """A call of `fwd`."""

    step: _Step
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    tree: Any

    @classmethod
    def of(cls, step: _Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Raises TypeError where an argument cannot be differentiated, or is no array."""
        for number in step.numbers:
            if not -len(args) <= number < len(args):
                raise TypeError(
                    f"hloom.split: argnums={number}: {step.name} was called with "
                    f"{pluralize(len(args), 'positional argument')}."
                )
        leaves, tree = jax.tree.flatten((args, kwargs))
        call = cls(step, args, kwargs, leaves, tree)
        call._check_arguments()
        return call

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """The arguments to differentiate, counted from the first."""
        return tuple(number % len(self.args) for number in self.step.numbers)

    @functools.cached_property
    def paths(self) -> list[str]:
        """The name of each leaf, "params['w']"."""
        return _paths(self.step.f, self.args, self.kwargs)

    @functools.cached_property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The shape of each leaf, and where it lies, if that is said."""
        return [_shape(leaf) for leaf in self.leaves]

    def _check_arguments(self) -> None:
        if len(set(self.numbers)) < len(self.numbers):
            raise ValueError(f"hloom.split: argnums={self.step.numbers} names an argument twice.")
        for number, leaf in enumerate(self.leaves):
            try:
                abstract(leaf)
            except TypeError as error:
                raise TypeError(
                    f"hloom.split: argument {self.paths[number]} of {self.step.name} is a "
                    f"{type(leaf).__name__}; wanted arrays. Bind what is none by functools.partial."
                ) from error
        for number in self.numbers:
            for path, leaf in jax.tree_util.tree_leaves_with_path(self.args[number]):
                dtype = abstract(leaf).dtype
                if not jnp.issubdtype(dtype, jnp.inexact):
                    name = f"{self._argument(number)}{jax.tree_util.keystr(path)}"
                    raise TypeError(
                        f"hloom.split: argnums={number}: {name} is {dtype}; only floating-point "
                        "numbers are differentiated. Leave it out of argnums, or pass it apart."
                    )

    def _argument(self, number: int) -> str:
        return _parameters(self.step.f, len(self.args))[number]

    def planned(self) -> _Planned:
        """The two programs for such arguments."""
        return self.step.planned(self)

    def _pullback(self, leaves: Sequence[Any]) -> tuple[Any, Any, Callable[[Any], Any]]:
        """Output, auxiliary output and pullback, in JAX."""
        args, _ = jax.tree.unflatten(self.tree, leaves)

        def of_differentiated(*values: Any) -> Any:
            # Made here: objects of Flax remember the trace that they are made in.
            args, kwargs = jax.tree.unflatten(self.tree, leaves)
            all_ = list(args)
            for number, value in zip(self.numbers, values, strict=True):
                all_[number] = value
            return self.step.f(*all_, **kwargs)

        given = [args[number] for number in self.numbers]
        if self.step.has_aux:
            y, pullback, aux = jax.vjp(of_differentiated, *given, has_aux=True)
            return y, aux, pullback
        y, pullback = jax.vjp(of_differentiated, *given)
        return y, None, pullback

    def traced(self) -> Any:
        """The call as a part of the program that is traced around it."""
        y, aux, pullback = self._pullback(self.leaves)
        outputs = _Outputs.of(self.step, y, aux)
        values, tree = jax.tree.flatten(pullback)
        names = [f"residual {number}" for number in range(len(values))]
        traced = _Traced(self.step, outputs, tree)
        kept = dict(zip(names, values, strict=True))
        residuals = Residuals(kept, {}, traced, self.step)
        return (y, residuals, aux) if self.step.has_aux else (y, residuals)

    def plan(self, pipelines: Sequence[Pipeline]) -> _Planned:
        """Traces the step, and splits it."""
        found: list[Any] = []

        def outputs_of(leaves: Sequence[Any]) -> Any:
            args, kwargs = jax.tree.unflatten(self.tree, leaves)
            result = self.step.f(*args, **kwargs)
            if self.step.has_aux and not (isinstance(result, tuple) and len(result) == 2):
                raise TypeError(
                    f"hloom.split: with has_aux=True {self.step.name} has to give (output, "
                    f"auxiliary output), got {type(result).__name__}."
                )
            return result if self.step.has_aux else (result, None)

        y, aux = jax.eval_shape(outputs_of, self.shapes)
        outputs = _Outputs.of(self.step, y, aux)

        def joint(leaves: Sequence[Any], cotangents: Sequence[Any]) -> Any:
            y, aux, pullback = self._pullback(leaves)
            gradients = pullback(jax.tree.unflatten(outputs.tree, cotangents))
            flat, tree = jax.tree.flatten(gradients)
            found.append(tree)
            return jax.tree.leaves((y, aux)), flat

        signature = Signature(
            self.step.name, self.shapes, jax.tree.leaves((y, aux)), outputs.shapes, joint
        )
        try:
            program = split_program(signature, pipelines)
        except PassError as failure:
            if isinstance(failure.__cause__, SplitError):
                raise ValueError(f"hloom.split: {self.step.name}: {failure.__cause__}.") from None
            raise
        except SplitOutputError as error:
            raise ValueError(f"hloom.split: {error}.") from None
        return _Planned(
            self.step, outputs, program, found[-1], jax.tree.structure((y, aux)),
            tuple(signature.outputs), tuple(self.paths),
        )  # fmt: skip


@dataclass(frozen=True)
class _Outputs:
    """What a step gives, and so what its cotangent looks like."""

    name: str
    tree: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, step: _Step, y: Any, aux: Any) -> _Outputs:
        """Raises TypeError where an output has no cotangent."""
        del aux
        with_paths, tree = jax.tree_util.tree_flatten_with_path(y)
        paths = tuple(jax.tree_util.keystr(path) for path, _ in with_paths)
        for path, leaf in with_paths:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                raise TypeError(
                    f"hloom.split: output{jax.tree_util.keystr(path)} of {step.name} is "
                    f"{leaf.dtype}, which has no cotangent. Give it back as an auxiliary output, "
                    "with has_aux=True."
                )
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_explicit(leaf))
                       for _, leaf in with_paths)  # fmt: skip
        return cls(step.name, tree, shapes, paths)

    def checked(self, cotangent: Any) -> list[Any]:
        """The leaves of a cotangent. Raises TypeError, ValueError where it does not fit."""
        leaves, tree = jax.tree.flatten(cotangent)
        if tree != self.tree:
            raise TypeError(
                f"hloom.split: the cotangent of {self.name} has the structure {tree}; wanted that "
                f"of its output, {self.tree}."
            )
        return [
            _checked_leaf(leaf, shape, f"cotangent{path} of {self.name}")
            for leaf, shape, path in zip(leaves, self.shapes, self.paths, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class _Planned:
    """The two programs of a step, with the trees that they take and give."""

    step: _Step
    cotangents: _Outputs
    program: SplitProgram
    gradients: Any
    results: Any
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]

    def forward_result(self, leaves: Sequence[Any], results: Sequence[Any]) -> Any:
        """What `fwd` gives, of the step's arguments and the forward program's results."""
        count = self.program.outputs
        y, aux = jax.tree.unflatten(self.results, results[:count])
        values = dict(zip(self.program.residuals, results[count:], strict=True))
        arguments = {self.paths[number]: leaves[number] for number in self.program.backward.reads}
        residuals = Residuals(values, arguments, self, self.step)
        return (y, residuals, aux) if self.step.has_aux else (y, residuals)

    def checked(self, cotangent: Any) -> list[Any]:
        return self.cotangents.checked(cotangent)

    def inputs(
        self, residuals: Residuals, cotangents: Sequence[Any], *, donate: bool
    ) -> tuple[Half, list[Any]]:
        """The backward program, and what it takes."""
        half = self.program.donating if donate else self.program.backward
        late = self.program.cotangents_of(cotangents)
        return half, [*residuals.arguments.values(), *residuals.values.values(), *late]

    def backward(self, residuals: Residuals, cotangents: Sequence[Any], *, donate: bool) -> Any:
        """The gradients."""
        half, inputs = self.inputs(residuals, cotangents, donate=donate)
        return self.step.result(jax.tree.unflatten(self.gradients, half.run(*inputs)))


@dataclass(frozen=True)
class _Traced:
    """A call of `fwd` that was traced as a part of another program: JAX's own pullback."""

    step: _Step
    cotangents: _Outputs
    tree: Any

    def checked(self, cotangent: Any) -> list[Any]:
        return self.cotangents.checked(cotangent)

    def backward(self, residuals: Residuals, cotangents: Sequence[Any], *, donate: bool) -> Any:
        """The gradients."""
        del donate
        values = list(residuals.values.values())
        if is_traced([*values, *cotangents]):
            return self._run(values, cotangents)
        if first_time(f"split outside {id(self.step)}"):
            warn(
                f"hloom.split: fwd of {self.step.name} was traced inside a jit, and its residuals "
                "have left it: what crosses is JAX's choice, and copies of arguments. Call fwd "
                "outside of a jit: it is compiled already."
            )
        return jax.jit(self._run)(values, cotangents)

    def _run(self, values: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        pullback = jax.tree.unflatten(self.tree, values)
        gradients = pullback(jax.tree.unflatten(self.cotangents.tree, cotangents))
        return self.step.result(gradients)


def _numbers(argnums: Any) -> tuple[int, ...]:
    found = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not found or not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        raise TypeError(
            f"hloom.split: argnums={argnums!r}: wanted the number of an argument, or several."
        )
    return found


def _bound(residuals: Any) -> Bytes | None:
    if residuals is None:
        return None
    if isinstance(residuals, int) and not isinstance(residuals, bool) and residuals >= 0:
        return Bytes(residuals)
    hint = ""
    if isinstance(residuals, str):
        try:
            return Bytes(parse_bytes(residuals))
        except SpellingError as error:
            hint = str(error)
    raise SpecError(
        f"hloom.split: residuals={residuals!r}: wanted bytes, as 1600 * 2**20 or '1600MiB'.{hint}"
    )


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape of an argument, and where it lies if it must lie there."""
    aval = abstract(leaf)
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, jax.Array) and not leaf.committed:
        sharding = None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)


def _explicit(shape: Any) -> Any:
    """The sharding that is a part of a value's type, over explicit axes of a mesh; else None."""
    sharding = getattr(shape, "sharding", None)
    spec = getattr(sharding, "spec", None)
    return sharding if spec is not None and any(axis is not None for axis in spec) else None


def _checked_leaf(leaf: Any, wanted: jax.ShapeDtypeStruct, name: str) -> Any:
    """A leaf of a cotangent; a number of Python takes the type that is wanted."""
    try:
        aval = abstract(leaf)
    except TypeError:
        raise TypeError(
            f"hloom.split: {name} is a {type(leaf).__name__}; wanted an array."
        ) from None
    is_real = isinstance(leaf, int | float) and not isinstance(leaf, bool)
    if is_real or (isinstance(leaf, complex) and jnp.issubdtype(wanted.dtype, jnp.complexfloating)):
        leaf = jnp.asarray(leaf, wanted.dtype)
        aval = abstract(leaf)
    if aval.shape != wanted.shape or aval.dtype != wanted.dtype:
        raise ValueError(
            f"hloom.split: {name} is {_described(aval)}; wanted {_described(wanted)}, as the "
            "output."
        )
    return leaf


def _described(shape: Any) -> str:
    return f"{shape.dtype}[{','.join(map(str, shape.shape))}]"


def _parameters(f: Callable[..., Any], count: int) -> list[str]:
    """The names of a function's positional arguments; "args[2]" of what has none."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in parameters if each.kind in positional][:count]
    return [*names, *(f"args[{number}]" for number in range(len(names), count))]


def _paths(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The name of each leaf of a call's arguments, in the order of `jax.tree.leaves`."""
    found = [
        f"{name}{jax.tree_util.keystr(path)}"
        for name, value in zip(_parameters(f, len(args)), args, strict=True)
        for path, _ in jax.tree_util.tree_leaves_with_path(value)
    ]
    for name, value in sorted(kwargs.items()):
        leaves = jax.tree_util.tree_leaves_with_path(value)
        found += [f"{name}{jax.tree_util.keystr(path)}" for path, _ in leaves]
    return found
