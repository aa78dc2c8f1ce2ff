"""What a step gives, and cotangents of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hloom._jax.module_call import abstract


@dataclass(frozen=True)
class Outputs:
    """What a step gives, and so what its cotangent looks like."""

    name: str
    tree: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, name: str, y: Any) -> Outputs:
        """Raises TypeError where an output has no cotangent."""
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
