"""`hloom.split` divides a differentiated function into a forward and a backward function."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import jax
import jax.numpy as jnp

from hloom._jax.module_call import abstract, is_traced, trace_state
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.options import Bytes, SpellingError, parse_bytes
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.text import pluralize
from hloom.plugin import flag_value
from hloom_steps.halves.backward import Backward, BackwardW, BackwardX
from hloom_steps.halves.calls import Convention, Outputs, PlannedCall, TracedCall
from hloom_steps.halves.host import LEAST_BYTES, HostMemoryError
from hloom_steps.halves.names import leaf_paths, parameter_names
from hloom_steps.halves.program import SplitOutputError, TracedSignature, split_program
from hloom_steps.halves.residuals import Residuals
from hloom_steps.split import BEFORE, Split
from hloom_steps.split.boundary import SplitError


@overload
def split(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    residuals: int | str | None = None,
    passes: str | None = None,
    *,
    weights: None = None,
    offload: bool | int | str = False,
) -> tuple[Forward, Backward]: ...


@overload
def split(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    residuals: int | str | None = None,
    passes: str | None = None,
    *,
    weights: int | Sequence[int],
    offload: bool | int | str = False,
) -> tuple[Forward, BackwardX, BackwardW]: ...


def split(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    residuals: int | str | None = None,
    passes: str | None = None,
    *,
    weights: int | Sequence[int] | None = None,
    offload: bool | int | str = False,
) -> tuple[Forward, Backward] | tuple[Forward, BackwardX, BackwardW]:
    """Returns a function's value and its gradients as two programs, with the fewest bytes between
    them.

    `y, res = fwd(*args, **kwargs)` returns the output of `f`, and residuals; `bwd(res, cotangent)`
    returns the gradients, as `jax.vjp` does. Both are compiled as `jax.jit` does, and run on the
    devices of their arguments. The residuals are a minimum cut of the step; arguments are no
    residuals: the backward program reads the caller's own arrays. Inside a `jit`, `vmap` or `grad`
    of the caller the two are parts of that program, without a boundary between them.

    With `weights` there are two backward programs, for schedules of pipelines that run the second
    one later. Of `fwd, bwd_x, bwd_w = split(stage, argnums=(0, 1), weights=(0,))`, a stage of
    (weights, x), `(gx,), rest = bwd_x(res, cotangent)` gives the gradients of inputs, and
    `(gw,) = bwd_w(rest)` those of weights. Each product of the backward pass is in one of them.
    `rest` has the residuals that `bwd_w` still reads, and results of `bwd_x`; the other residuals
    may be freed after `bwd_x`.

    Args:
      f: a function that returns an array, or a tree of them, of floating-point numbers; it must
        have no effects.
      argnums: the arguments to differentiate, one or several, by position. Gradients are a tuple
        in the same order where it is a sequence.
      has_aux: whether `f` returns (output, auxiliary output), and `fwd` (y, res, aux).
      residuals: the bytes that the residuals may take on one device, e.g. 1600 * 2**20 or
        "1600MiB". Matrix products are then recomputed, as few as meet the limit. Without it no
        product is recomputed.
      passes: the passes that run on the step before the split, e.g. "fit{budget=60GiB}"; by default
        the spec of `jax_hloom`, and "remat" where that is not set; with `residuals`, "off" where
        that recomputes less.
      weights: the numbers of `argnums` whose gradients `bwd_w` returns, one or several. `bwd_w`
        returns a tuple where this is a sequence, and `bwd_x` always does.
      offload: whether residuals are in pinned host memory while neither program runs: those of at
        least 1 MiB on a device, or of the given number of bytes.

    Raises TypeError where an argument to differentiate, or an output, is not of floating-point
    numbers; ValueError where the step cannot be split, or no boundary meets the limit; SpecError
    for a mistaken spec; PassError where a pass fails.
    """
    if not callable(f):
        raise TypeError(f"hloom.split: wanted a function, got {type(f).__name__}.")
    numbers = _numbers("argnums", argnums)
    convention = Convention(
        getattr(f, "__name__", type(f).__name__).strip("<>"),
        has_aux,
        isinstance(argnums, int),
        () if weights is None else _places(weights, numbers),
        isinstance(weights, int),
    )
    step = _Step(f, convention, numbers, _bound(residuals), passes, _host_bytes(offload))
    if weights is None:
        return Forward(step), Backward(convention)
    return Forward(step), BackwardX(convention), BackwardW(convention)


class Forward:
    """The forward function that `split` returns."""

    def __init__(self, step: _Step) -> None:
        self._step = step
        functools.update_wrapper(self, step.f, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns (y, residuals), or with auxiliary outputs (y, residuals, aux)."""
        call = _Call.of(self._step, args, kwargs)
        if is_traced(call.leaves):
            return call.traced()
        planned = call.planned()
        program = planned.program
        results = program.forward.run(*program.forward_inputs(call.leaves))
        return planned.forward_result(call.leaves, results)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of a call, with a `jax.ShapeDtypeStruct` for each array."""
        call = _Call.of(self._step, args, kwargs)
        planned = call.planned()
        return planned.forward_result(call.shapes, planned.program.forward.results)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Returns the forward program, lowered for arguments or their `jax.ShapeDtypeStruct`s."""
        call = _Call.of(self._step, args, kwargs)
        program = call.planned().program
        return program.forward.run.lower(*program.forward_inputs(call.shapes))


class _Step:
    """The arguments of a call of `split`, and the programs for each kind of the step's
    arguments."""

    def __init__(
        self,
        f: Callable[..., Any],
        convention: Convention,
        numbers: tuple[int, ...],
        bound: Bytes | None,
        passes: str | None,
        host_bytes: int | None,
    ) -> None:
        self.f, self.convention, self.numbers = f, convention, numbers
        self.bound, self.passes, self.host_bytes = bound, passes, host_bytes
        self.name, self.has_aux = convention.name, convention.has_aux
        self._known: dict[Any, PlannedCall] = {}
        self._lock = threading.Lock()
        self.pipelines()

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Returns the pipelines that may run on the step, with the split as the last pass. Raises
        SpecError."""
        spec, source = self.passes, "hloom.split: passes"
        if spec is None:
            spec, source = flag_value(), "JAX_HLOOM"
        if spec is None or (spec == "" and self.passes is None):
            specs = BEFORE[: 1 if self.bound is None else None]
        else:
            specs = (spec or "off",)
        found = [Pipeline.parse(each, source=source).passes for each in specs]
        if any(isinstance(each, Split) for before in found for each in before):
            raise SpecError(
                f"{source}={spec!r}: the split comes last by itself; its bound is residuals=."
            )
        return tuple(Pipeline((*before, Split(self.bound))) for before in found)

    def planned(self, call: _Call) -> PlannedCall:
        """Returns the programs for a call's kind of arguments. Raises the errors that `split`
        documents."""
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
        """Flattens the arguments; raises TypeError where one cannot be differentiated, or is no
        array."""
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
        """Returns the arguments to differentiate, counted from the first."""
        return tuple(number % len(self.args) for number in self.step.numbers)

    @functools.cached_property
    def paths(self) -> list[str]:
        """Returns the name of each leaf, "params['w']"."""
        return leaf_paths(self.step.f, self.args, self.kwargs)

    @functools.cached_property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Returns the shape of each leaf, with its sharding where it has one."""
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
        return parameter_names(self.step.f, len(self.args))[number]

    def planned(self) -> PlannedCall:
        """Returns the programs for such arguments."""
        return self.step.planned(self)

    def _pullback(self, leaves: Sequence[Any]) -> tuple[Any, Any, Callable[[Any], Any]]:
        """Returns output, auxiliary output and pullback, computed by JAX."""
        args, _ = jax.tree.unflatten(self.tree, leaves)

        def of_differentiated(*values: Any) -> Any:
            # Built here, since objects of Flax remember the trace that created them.
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
        """Runs the call as a part of the program that is being traced around it."""
        y, aux, pullback = self._pullback(self.leaves)
        convention = self.step.convention
        values, tree = jax.tree.flatten(pullback)
        kept = {f"residual {number}": value for number, value in enumerate(values)}
        traced = TracedCall(convention, Outputs.of(convention.name, y), tree)
        return convention.forward(y, Residuals(kept, {}, traced, convention), aux)

    def plan(self, pipelines: Sequence[Pipeline]) -> PlannedCall:
        """Traces the step and splits it."""
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
        outputs = Outputs.of(self.step.name, y)

        def joint(leaves: Sequence[Any], cotangents: Sequence[Any]) -> Any:
            y, aux, pullback = self._pullback(leaves)
            gradients = pullback(jax.tree.unflatten(outputs.tree, cotangents))
            flat, tree = jax.tree.flatten(gradients)
            found.append(tree)
            return jax.tree.leaves((y, aux)), flat

        signature = TracedSignature(
            self.step.name, self.shapes, jax.tree.leaves((y, aux)), outputs.shapes,
            self._weight_gradients(), joint,
        )  # fmt: skip
        try:
            program = split_program(signature, pipelines, self.step.host_bytes)
        except PassError as failure:
            if isinstance(failure.__cause__, SplitError):
                raise ValueError(f"hloom.split: {self.step.name}: {failure.__cause__}.") from None
            raise
        except (SplitOutputError, HostMemoryError) as error:
            raise ValueError(f"hloom.split: {error}.") from None
        return PlannedCall(
            self.step.convention, outputs, program, tuple(found[-1].children()),
            jax.tree.structure((y, aux)), tuple(signature.outputs), tuple(self.paths),
        )  # fmt: skip

    def _weight_gradients(self) -> list[int]:
        """Returns the numbers of the gradients' leaves that belong to weights."""
        places = [
            place
            for place, number in enumerate(self.numbers)
            for _ in jax.tree.leaves(self.args[number])
        ]
        weights = self.step.convention.weights
        return [number for number, place in enumerate(places) if place in weights]


def _numbers(what: str, argnums: Any) -> tuple[int, ...]:
    """Returns argument numbers as a tuple; raises TypeError where they are none."""
    found = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not found or not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        raise TypeError(
            f"hloom.split: {what}={argnums!r}: wanted the number of an argument, or several."
        )
    return found


def _places(weights: Any, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the places of weights in ``argnums``, in its order. Raises TypeError, ValueError."""
    named = _numbers("weights", weights)
    if not set(named) <= set(numbers):
        raise ValueError(
            f"hloom.split: weights={weights!r} names an argument that argnums={numbers} does not; "
            "wanted some of those, as they are written there."
        )
    if set(named) == set(numbers):
        raise ValueError(
            f"hloom.split: weights={weights!r} are all of argnums={numbers}, which leaves bwd_x "
            "nothing to do. Add an input to argnums, or leave weights= out."
        )
    return tuple(place for place, number in enumerate(numbers) if number in named)


def _host_bytes(offload: Any) -> int | None:
    """Returns the least bytes of a residual in host memory; None where none is."""
    if isinstance(offload, bool):
        return LEAST_BYTES if offload else None
    return _bytes("offload", offload, "True, False, or bytes, as '256KiB'")


def _bound(residuals: Any) -> Bytes | None:
    if residuals is None:
        return None
    return _bytes("residuals", residuals, "bytes, as 1600 * 2**20 or '1600MiB'")


def _bytes(what: str, given: Any, wanted: str) -> Bytes:
    """Raises SpecError."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return Bytes(given)
    hint = ""
    if isinstance(given, str):
        try:
            return Bytes(parse_bytes(given))
        except SpellingError as error:
            hint = str(error)
    raise SpecError(f"hloom.split: {what}={given!r}: wanted {wanted}.{hint}")


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape of an argument, with its sharding where that is committed."""
    aval = abstract(leaf)
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, jax.Array) and not leaf.committed:
        sharding = None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
