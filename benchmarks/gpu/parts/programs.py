"""The benchmark programs on the device at hand: as they are, or tiny, with arguments made up."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS
from benchmarks.gpu.items import Skip
from benchmarks.programs.attentions import HEADS, MODELS, Model
from benchmarks.programs.gpt import Gpt

_TINY_GPT: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "vocabulary": 96,
    "batch": 2,
    "sequence": 32,
}

_TINY: Mapping[str, Mapping[str, Any]] = {
    "adam": {"TENSORS": 8},
    "llama": {
        "LAYERS": 2,
        "WIDTH": 32,
        "HEADS": 4,
        "GROUPS": 2,
        "HEAD": 8,
        "HIDDEN": 48,
        "VOCABULARY": 96,
        "BATCH": 2,
        "SEQUENCE": 32,
    },
    "lstm": {"BATCH": 4, "STEPS": 8, "WIDTH": 16},
    "mixture_of_experts": {
        "LAYERS": 2,
        "WIDTH": 16,
        "EXPERTS": 4,
        "HIDDEN": 32,
        "BATCH": 2,
        "SEQUENCE": 16,
    },
    "perceptron": {"BATCH": 8, "WIDTH": 16},
    "resnet": {"BATCH": 1, "STAGES": ((8, 2048, 2, 1),)},
    "two_level_scan": {"GROUPS": 3, "LAYERS": 4, "WIDTH": 64, "BATCH": 1024},
    "unet": {"BATCH": 1, "SIZE": 16, "CHANNELS": (4, 8, 8, 8)},
}
"""By module of benchmarks.programs, its constants."""

_TOKENS = 8192

_ATTENTION: Mapping[str, Mapping[str, int]] = {
    **{
        f"attention, {keys} keys": {"length": keys, "batch": _TOKENS // keys}
        for keys in (64, 128, 256, 512, 1024, 4096)
    },
    **{
        f"attention, heads of {head}": {"head": head, "heads": 768 // head, "shared": 768 // head}
        for head in (64, 96, 128, 256)
    },
    **{
        f"attention, {group} heads a head of keys": {"heads": 16, "shared": 16 // group}
        for group in (1, 2, 8)
    },
}
"""By program of part 5 how it differs from a decoder of 1,024 tokens."""

_UNIT = 0.02
"""The size of made-up parameters; data and gains are of size 1."""

_PATTERN = 2**16


def lower(name: str, *, policy: str | None = None, tiny: bool = False, sharding: Any = None) -> Any:
    """A program lowered for the default device, or that of a sharding.

    With `tiny` the program's module has other constants from then on: this is for a process of its
    own. Raises Skip where a package that the program needs is not installed.
    """
    if tiny and name.startswith("gpt"):
        return Gpt(scanned=name != "gpt_unrolled", policy=policy, **_TINY_GPT).lower(sharding)
    if name in _ATTENTION:
        return decoder(name, tiny=tiny).lower(sharding, fused=policy is not None)
    subjects = SUBJECTS | HARD_SUBJECTS
    if name in subjects and not tiny:
        return subjects[name].lower(policy, sharding)
    try:
        module = importlib.import_module(f"benchmarks.programs.{name}")
    except ModuleNotFoundError as error:
        raise Skip(f"the program {name} needs {error.name}, which is not installed") from None
    for constant, value in _TINY[name].items() if tiny else ():
        setattr(module, constant, value)
    if name in SUBJECTS:
        return SUBJECTS[name].lower(policy, sharding)
    function, arguments = module.program()
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    return jax.jit(function).lower(*placed)


def decoder(name: str, *, tiny: bool = False) -> Model:
    """The decoder of a program of part 5."""
    small = {"length": 16, "batch": 2, "heads": 2, "shared": 2, "head": 8} if tiny else {}
    model = MODELS["4 of 12 heads of keys, 1024"]
    sizes: dict[str, Any] = {"length": 1024, "shared": HEADS, **_ATTENTION[name], **small}
    return dataclasses.replace(model, **sizes)


def made_up(lowered: Any) -> tuple[Any, ...]:
    """Arguments for a program on the default device: the same numbers at every call, and no zeros.

    The last argument is data. Of Adam's state the second moments, `nu`, are positive.
    """
    arguments, _ = lowered.args_info
    noise = np.random.default_rng(0).standard_normal(_PATTERN).astype(np.float32)

    def leaf(path: Any, info: Any, *, is_data: bool) -> jax.Array:
        count = int(np.prod(info.shape, dtype=np.int64))
        if jnp.issubdtype(info.dtype, jnp.integer):
            # Tokens that every vocabulary has; of an optimizer's state the number of steps.
            numbers = np.arange(count).reshape(info.shape) * 31 % 64
            return jnp.asarray(numbers, info.dtype)
        values = np.resize(noise, count).reshape(info.shape)
        if not is_data and len(info.shape) > 1:
            values = values * np.float32(_UNIT)
        elif not is_data:
            values = 1 + values * np.float32(_UNIT)
        if ".nu[" in jax.tree_util.keystr(path):
            values = np.abs(values)
        return jnp.asarray(values, info.dtype)

    last = len(arguments) - 1
    return tuple(
        jax.tree_util.tree_map_with_path(
            lambda path, info, is_data=number == last: leaf(path, info, is_data=is_data),
            argument,
            is_leaf=lambda node: hasattr(node, "dtype"),
        )
        for number, argument in enumerate(arguments)
    )


def norms(outputs: Any) -> list[float]:
    """Of each array of floating-point numbers, the root of the mean square."""
    leaves = [x for x in jax.tree.leaves(outputs) if jnp.issubdtype(x.dtype, jnp.floating)]
    squares = [jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)))) for x in leaves]
    return [float(x) for x in jax.device_get(squares)]


def difference(outputs: Any, wanted: Any) -> float:
    """How far two results are apart: the norm of the difference of an array by that of the array.

    Of several arrays, that of the largest.
    """
    pairs = zip(jax.tree.leaves(outputs), jax.tree.leaves(wanted), strict=True)
    return max((float(_difference(one, other)) for one, other in pairs), default=0.0)


@jax.jit
def _difference(one: jax.Array, other: jax.Array) -> jax.Array:
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    norm = jnp.sqrt(jnp.sum(jnp.square(other)))
    return jnp.sqrt(jnp.sum(jnp.square(one - other))) / jnp.where(norm == 0, 1.0, norm)


def placed_on(target: str) -> Any:
    """The placement on a GPU that is not here. Skips where JAX lacks the compiler for it."""
    from hloom.targets import deviceless

    try:
        deviceless.prepare()
        return deviceless.placement(target)
    except deviceless.MissingCompilerError as error:
        raise Skip(str(error)) from None
