"""The backward functions that `hloom.split` returns."""

from __future__ import annotations

from typing import Any, ClassVar

from hloom_steps.halves.calls import Convention, PlannedCall, TracedCall, TracedRest
from hloom_steps.halves.residuals import Residuals


class _OfResiduals:
    """A backward function, which takes the residuals of `fwd` and the cotangent of its output."""

    _NAME: ClassVar[str]

    def __init__(self, convention: Convention) -> None:
        self._convention = convention
        self.__name__ = f"{convention.name}_{self._NAME}"

    def lower(self, residuals: Residuals, cotangent: Any, *, donate: bool = False) -> Any:
        """Returns the program, lowered for arrays or their `jax.ShapeDtypeStruct`s."""
        call = self._planned(residuals)
        half = call.program.backward
        cotangents = dict(enumerate(call.cotangents.checked(cotangent)))
        return half.jitted(donate=donate).lower(*call.inputs(half, residuals, cotangents))

    def _planned(self, residuals: Residuals) -> PlannedCall:
        call = self._call(residuals)
        if not isinstance(call, PlannedCall):
            raise ValueError(_NO_PROGRAM)
        return call

    def _call(self, residuals: Residuals) -> PlannedCall | TracedCall:
        """Returns the call of the residuals. Raises TypeError, ValueError where they are not from
        `fwd`."""
        if not isinstance(residuals, Residuals):
            raise TypeError(
                f"hloom.split: {self.__name__} wants the residuals that its fwd gave, got "
                f"{type(residuals).__name__}."
            )
        if not residuals.is_of(self._convention):
            raise ValueError(
                f"hloom.split: {self.__name__} got {_told(residuals, self._convention)}; wanted "
                "those of the fwd that came with it from one hloom.split."
            )
        found: PlannedCall | TracedCall = residuals.program
        return found


class Backward(_OfResiduals):
    """The backward function: all gradients."""

    _NAME = "backward"

    def __call__(self, residuals: Residuals, cotangent: Any, *, donate: bool = False) -> Any:
        """Returns the gradients of a call of `fwd`, given its residuals and the cotangent of its
        output.

        With `donate` the residuals' buffers are reused for the gradients, and deleted; the caller's
        arguments stay.
        """
        call = self._call(residuals)
        return call.backward(residuals, call.cotangents.checked(cotangent), donate=donate)


class BackwardX(_OfResiduals):
    """The first of two backward functions: gradients of inputs."""

    _NAME = "backward_x"

    def __call__(
        self, residuals: Residuals, cotangent: Any, *, donate: bool = False
    ) -> tuple[tuple[Any, ...], Residuals]:
        """Returns the gradients of the arguments that `weights=` does not name, and the residuals
        for `bwd_w`.

        `bwd_w` needs the residuals that it still reads, and results of this program. The other
        residuals may be freed. With `donate` their buffers are reused for the results, and deleted.
        """
        call = self._call(residuals)
        found: tuple[tuple[Any, ...], Residuals] = call.of_inputs(
            residuals, call.cotangents.checked(cotangent), donate=donate
        )
        return found

    def eval_shape(self, residuals: Residuals, cotangent: Any) -> Any:
        """Returns the result of a call, with a `jax.ShapeDtypeStruct` for each array."""
        call = self._planned(residuals)
        cotangents = call.cotangents.checked(cotangent)
        return call.of_inputs_result(residuals, cotangents, call.program.backward.results)


class BackwardW:
    """The second of two backward functions: gradients of weights."""

    def __init__(self, convention: Convention) -> None:
        self._convention = convention
        self.__name__ = f"{convention.name}_backward_w"

    def __call__(self, rest: Residuals, *, donate: bool = False) -> Any:
        """Returns the gradients of the arguments that `weights=` names, given the second result of
        `bwd_x`.

        With `donate` its buffers are reused for the gradients, and deleted; the caller's arguments
        stay.
        """
        return self._call(rest).of_weights(rest, donate=donate)

    def lower(self, rest: Residuals, *, donate: bool = False) -> Any:
        """Returns the program, lowered for arrays or their `jax.ShapeDtypeStruct`s."""
        call = self._call(rest)
        if not isinstance(call, PlannedCall):
            raise ValueError(_NO_PROGRAM)
        half = call.program.weights
        return half.jitted(donate=donate).lower(*call.inputs(half, rest, call.cotangents_in(rest)))

    def _call(self, rest: Residuals) -> PlannedCall | TracedRest:
        if not isinstance(rest, Residuals) or not rest.is_of(self._convention.rest):
            raise ValueError(
                f"hloom.split: {self.__name__} got {_told(rest, self._convention)}; wanted what "
                "its bwd_x gave beside the gradients."
            )
        found: PlannedCall | TracedRest = rest.program
        return found


_NO_PROGRAM = "hloom.split: residuals that were traced inside a jit have no program"


def _told(given: Any, owner: Convention) -> str:
    if not isinstance(given, Residuals):
        return f"a {type(given).__name__}"
    if given.is_of(owner):
        return "the residuals of fwd"
    return "what bwd_x has left" if given.is_of(owner.rest) else "residuals of another fwd"
