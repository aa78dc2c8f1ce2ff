"""`hloom.split`: a differentiated function as a forward and a backward function."""

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
from hloom_steps.halves.program import Signature, SplitOutputError, split_program
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
    """A function's value and its gradients as two programs, with the fewest bytes between them.

    `y, res = fwd(*args, **kwargs)` gives what `f` gives, and residuals; `bwd(res, cotangent)` gives
    the gradients, as `jax.vjp` does. Both are compiled as `jax.jit` does, and run on the devices of
    their arguments. The residuals are a minimum cut of the step; of the arguments the backward
    program reads the caller's own arrays. Inside of a `jit`, `vmap` or `grad` of the caller's the
    two are parts of that program, which has no boundary there.

    With `weights` there are two backward programs, for schedules of pipelines that run the second
    one later. Of `fwd, bwd_x, bwd_w = split(stage, argnums=(0, 1), weights=(0,))`, a stage of
    (weights, x), `(gx,), rest = bwd_x(res, cotangent)` gives the gradients of inputs, and
    `(gw,) = bwd_w(rest)` those of weights. Each product of the backward pass is in one of them.
    `rest` has the residuals that `bwd_w` still reads, and what `bwd_x` made for it; the other
    residuals may go after `bwd_x`.

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
      weights: those of `argnums` whose gradients `bwd_w` gives, one or several. It gives a tuple
        where it is a sequence, and `bwd_x` always does.
      offload: whether residuals are in the host's pinned memory while neither program runs, those
        of at least 1 MiB of a device, or of so many bytes as it says.

    Raises TypeError where an argument to differentiate, or an output, is not of floating-point
    numbers; ValueError where the step cannot be split, or the bound is below what can be reached;
    SpecError for a mistaken spec; PassError where a pass fails.
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
        results = program.forward.run(*program.forward_inputs(call.leaves))
        return planned.forward_result(call.leaves, results)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """What a call gives, with a `jax.ShapeDtypeStruct` for each array."""
        call = _Call.of(self._step, args, kwargs)
        planned = call.planned()
        return planned.forward_result(call.shapes, planned.program.forward.results)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The forward program, lowered for arguments, or `jax.ShapeDtypeStruct`s of such."""
        call = _Call.of(self._step, args, kwargs)
        program = call.planned().program
        return program.forward.run.lower(*program.forward_inputs(call.shapes))


class _Step:
    """What `split` was called with, and the programs for each kind of arguments."""

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
        """The passes that may run on the step, the split last. Raises SpecError."""
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
        return leaf_paths(self.step.f, self.args, self.kwargs)

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
        return parameter_names(self.step.f, len(self.args))[number]

    def planned(self) -> PlannedCall:
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
        convention = self.step.convention
        values, tree = jax.tree.flatten(pullback)
        kept = {f"residual {number}": value for number, value in enumerate(values)}
        traced = TracedCall(convention, Outputs.of(convention.name, y), tree)
        return convention.forward(y, Residuals(kept, {}, traced, convention), aux)

    def plan(self, pipelines: Sequence[Pipeline]) -> PlannedCall:
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
        outputs = Outputs.of(self.step.name, y)

        def joint(leaves: Sequence[Any], cotangents: Sequence[Any]) -> Any:
            y, aux, pullback = self._pullback(leaves)
            gradients = pullback(jax.tree.unflatten(outputs.tree, cotangents))
            flat, tree = jax.tree.flatten(gradients)
            found.append(tree)
            return jax.tree.leaves((y, aux)), flat

        signature = Signature(
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
        """The numbers of the leaves of gradients that are of weights."""
        places = [
            place
            for place, number in enumerate(self.numbers)
            for _ in jax.tree.leaves(self.args[number])
        ]
        weights = self.step.convention.weights
        return [number for number, place in enumerate(places) if place in weights]


def _numbers(what: str, argnums: Any) -> tuple[int, ...]:
    """Raises TypeError where they are no numbers of arguments."""
    found = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not found or not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        raise TypeError(
            f"hloom.split: {what}={argnums!r}: wanted the number of an argument, or several."
        )
    return found


def _places(weights: Any, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The places of weights in ``argnums``, in its order. Raises TypeError, ValueError."""
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
    """The least bytes of a residual that goes to the host; None where none does."""
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
    """The shape of an argument, and where it lies if it must lie there."""
    aval = abstract(leaf)
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, jax.Array) and not leaf.committed:
        sharding = None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
