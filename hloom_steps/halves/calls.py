"""A call of `fwd`: connects its residuals with the backward functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from hloom._jax.module_call import abstract, is_traced
from hloom.policy import first_time, warn
from hloom_steps.halves.program import Half, SplitProgram
from hloom_steps.halves.residuals import Residuals


@dataclass(frozen=True, eq=False)
class Convention:
    """The form in which a step's values are returned; the owner of its residuals.

    Attributes:
      name: the function's name.
      has_aux: whether it returns auxiliary outputs.
      is_single: whether ``argnums`` is one number, not a sequence.
      weights: the places in ``argnums`` whose gradients a second backward function returns.
      weights_single: whether ``weights`` was given as one number.
      rest: the owner of the values that the first backward function passes to the second one.
    """

    name: str
    has_aux: bool
    is_single: bool
    weights: tuple[int, ...] = ()
    weights_single: bool = False
    rest: object = field(default_factory=object)

    def forward(self, y: Any, residuals: Residuals, aux: Any) -> Any:
        """Returns the result of `fwd`."""
        return (y, residuals, aux) if self.has_aux else (y, residuals)

    def backward(self, gradients: Sequence[Any]) -> Any:
        """Returns the result of `bwd`, given the gradients of all arguments."""
        return gradients[0] if self.is_single else tuple(gradients)

    def of_inputs(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the gradients of `bwd_x`, given those of all arguments."""
        return tuple(each for place, each in enumerate(gradients) if place not in self.weights)

    def of_weights(self, gradients: Sequence[Any]) -> Any:
        """Returns the result of `bwd_w`, given the gradients of the weights."""
        return gradients[0] if self.weights_single else tuple(gradients)


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """The programs of a step, with the trees of their arguments and results.

    Attributes:
      convention: the form in which values are returned.
      cotangents: the step's outputs, which determine the form of its cotangent.
      gradients: the trees of the gradients of each argument.
      results: the tree of outputs and auxiliary outputs.
      outputs: the shapes of both.
      paths: the names of the arguments' leaves.
    """

    convention: Convention
    cotangents: Outputs
    program: SplitProgram
    gradients: tuple[Any, ...]
    results: Any
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]

    def forward_result(self, leaves: Sequence[Any], results: Sequence[Any]) -> Any:
        """Returns the result of `fwd`, given the step's arguments and the forward program's
        results."""
        count = len(self.outputs)
        y, aux = jax.tree.unflatten(self.results, results[:count])
        values = dict(zip(self.program.residuals, results[count:], strict=True))
        arguments = {self.paths[number]: leaves[number] for number in self.program.read_again}
        return self.convention.forward(y, Residuals(values, arguments, self, self.convention), aux)

    def inputs(self, half: Half, residuals: Residuals, cotangents: Mapping[int, Any]) -> list[Any]:
        """Returns the arguments of a backward program."""
        return [
            *(residuals.arguments[self.paths[number]] for number in half.reads),
            *(residuals.values[name] for name in half.residuals),
            *(cotangents[number] for number in half.cotangents),
        ]

    def cotangents_in(self, rest: Residuals) -> dict[int, Any]:
        """Returns the cotangents that the second backward program reads."""
        half = self.program.weights
        return {number: rest.arguments[self._cotangent(number)] for number in half.cotangents}

    def backward(self, residuals: Residuals, cotangents: Sequence[Any], *, donate: bool) -> Any:
        """Returns the gradients."""
        half = self.program.backward
        inputs = self.inputs(half, residuals, dict(enumerate(cotangents)))
        results = half.jitted(donate=donate)(*inputs)
        return self.convention.backward(_unflatten(self.gradients, results))

    def of_inputs(self, residuals: Residuals, cotangents: Sequence[Any], *, donate: bool) -> Any:
        """Returns the gradients of inputs, and the residuals for those of weights."""
        half = self.program.backward
        inputs = self.inputs(half, residuals, dict(enumerate(cotangents)))
        results = half.jitted(donate=donate)(*inputs)
        return self.of_inputs_result(residuals, cotangents, results)

    def of_inputs_result(
        self, residuals: Residuals, cotangents: Sequence[Any], results: Sequence[Any]
    ) -> Any:
        """Returns the result of `of_inputs`, given the program's results."""
        trees = self.convention.of_inputs(self.gradients)
        count = sum(tree.num_leaves for tree in trees)
        made = residuals.values | dict(zip(self.program.handed, results[count:], strict=True))
        half = self.program.weights
        arguments = {
            self.paths[number]: residuals.arguments[self.paths[number]] for number in half.reads
        }
        arguments |= {self._cotangent(number): cotangents[number] for number in half.cotangents}
        values = {name: made[name] for name in half.residuals}
        rest = Residuals(values, arguments, self, self.convention.rest)
        return tuple(_unflatten(trees, results[:count])), rest

    def of_weights(self, rest: Residuals, *, donate: bool) -> Any:
        """Returns the gradients of weights."""
        half = self.program.weights
        results = half.jitted(donate=donate)(*self.inputs(half, rest, self.cotangents_in(rest)))
        trees = [self.gradients[place] for place in self.convention.weights]
        return self.convention.of_weights(_unflatten(trees, results))

    def _cotangent(self, number: int) -> str:
        return f"<cotangent>{self.cotangents.paths[number]}"


@dataclass(frozen=True)
class TracedCall:
    """A call of `fwd` that was traced as a part of another program: JAX's own pullback."""

    convention: Convention
    cotangents: Outputs
    tree: Any

    def backward(self, residuals: Residuals, cotangents: Sequence[Any], *, donate: bool) -> Any:
        """Returns the gradients."""
        del donate
        return self.convention.backward(self._gradients(residuals, cotangents))

    def of_inputs(self, residuals: Residuals, cotangents: Sequence[Any], *, donate: bool) -> Any:
        """Returns the gradients of inputs, and those of weights as the rest."""
        del donate
        found, convention = self._gradients(residuals, cotangents), self.convention
        flat, tree = jax.tree.flatten([found[place] for place in convention.weights])
        named = {f"gradient {number}": value for number, value in enumerate(flat)}
        rest = Residuals(named, {}, TracedRest(convention, tree), convention.rest)
        return convention.of_inputs(found), rest

    def _gradients(self, residuals: Residuals, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        values = list(residuals.values.values())
        if is_traced([*values, *cotangents]):
            return self._run(values, cotangents)
        if first_time(f"split outside {id(self.convention)}"):
            warn(
                f"hloom.split: fwd of {self.convention.name} was traced inside a jit, and its "
                "residuals have left it: what crosses is JAX's choice, and copies of arguments. "
                "Call fwd outside of a jit: it is compiled already."
            )
        found: tuple[Any, ...] = jax.jit(self._run)(values, cotangents)
        return found

    def _run(self, values: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        pullback = jax.tree.unflatten(self.tree, values)
        return tuple(pullback(jax.tree.unflatten(self.cotangents.tree, cotangents)))


@dataclass(frozen=True)
class TracedRest:
    """The rest of a traced call for the second backward function: the gradients of weights
    themselves."""

    convention: Convention
    tree: Any

    def of_weights(self, rest: Residuals, *, donate: bool) -> Any:
        """Returns the gradients of weights."""
        del donate
        found = jax.tree.unflatten(self.tree, list(rest.values.values()))
        return self.convention.of_weights(found)


def _unflatten(trees: Iterable[Any], leaves: Iterable[Any]) -> list[Any]:
    """Builds several trees from the leaves of all."""
    left = iter(leaves)
    return [
        jax.tree.unflatten(tree, [next(left) for _ in range(tree.num_leaves)]) for tree in trees
    ]


@dataclass(frozen=True)
class Outputs:
    """The outputs of a step, which determine the form of its cotangent."""

    name: str
    tree: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, name: str, y: Any) -> Outputs:
        """Returns the outputs; raises TypeError where one has no cotangent."""
        with_paths, tree = jax.tree_util.tree_flatten_with_path(y)
        paths = tuple(jax.tree_util.keystr(path) for path, _ in with_paths)
        for path, leaf in with_paths:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                raise TypeError(
                    f"hloom.split: output{jax.tree_util.keystr(path)} of {name} is "
                    f"{leaf.dtype}, which has no cotangent. Give it back as an auxiliary output, "
                    "with has_aux=True."
                )
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_explicit(leaf))
                       for _, leaf in with_paths)  # fmt: skip
        return cls(name, tree, shapes, paths)

    def checked(self, cotangent: Any) -> list[Any]:
        """Returns the leaves of a cotangent. Raises TypeError, ValueError where it does not fit."""
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


def _explicit(shape: Any) -> Any:
    """Returns the sharding in a value's type, over explicit axes of a mesh; else None."""
    sharding = getattr(shape, "sharding", None)
    spec = getattr(sharding, "spec", None)
    return sharding if spec is not None and any(axis is not None for axis in spec) else None


def _checked_leaf(leaf: Any, wanted: jax.ShapeDtypeStruct, name: str) -> Any:
    """Returns a leaf of a cotangent; a Python number takes the wanted type."""
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
