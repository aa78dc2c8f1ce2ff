"""Names a call's arguments, for messages and tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax


def parameter_names(f: Callable[..., Any], count: int) -> list[str]:
    """Returns the names of a function's positional arguments; "args[2]" where one has none."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in parameters if each.kind in positional][:count]
    return [*names, *(f"args[{number}]" for number in range(len(names), count))]


def leaf_paths(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Returns the name of each leaf of a call's arguments, in the order of `jax.tree.leaves`."""
    found = [
        f"{name}{jax.tree_util.keystr(path)}"
        for name, value in zip(parameter_names(f, len(args)), args, strict=True)
        for path, _ in jax.tree_util.tree_leaves_with_path(value)
    ]
    for name, value in sorted(kwargs.items()):
        leaves = jax.tree_util.tree_leaves_with_path(value)
        found += [f"{name}{jax.tree_util.keystr(path)}" for path, _ in leaves]
    return found
