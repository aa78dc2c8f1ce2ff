"""Steps of small decoders over meshes, drawn at random: splits, layers and loss heads."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

BATCH, LENGTH, WIDTH, WORDS = 8, 16, 16, 32

MESHES = ((4,), (8,), (2, 2), (2, 4), (4, 2), (2, 2, 2))

Tree = Any

Axes = tuple[str, ...] | str | None


@dataclass(frozen=True)
class Split:
    """Over which axes of a mesh a decoder lies; None is over none.

    Attributes:
      explicit: whether the axes are, so that types have them, and the user gathers.
      batch: the sequences.
      positions: of a sequence.
      parameters: their width, as by FSDP.
      tensor: the hidden units and the words.
    """

    mesh: Mesh
    explicit: bool
    batch: Axes
    positions: Axes
    parameters: Axes
    tensor: Axes

    def over(self) -> Any:
        """Within it the mesh is the current one, which explicit axes ask for."""
        return jax.set_mesh(self.mesh) if self.explicit else contextlib.nullcontext()

    def gathered(self, w: Any) -> Any:
        """A parameter whole on each device; automatic axes leave that to the partitioner."""
        return jax.sharding.reshard(w, P(*[None] * w.ndim)) if self.explicit else w

    def constrained(self, h: Any, *axes: Axes) -> Any:
        if self.explicit:
            return jax.sharding.reshard(h, P(*axes))
        return lax.with_sharding_constraint(h, NamedSharding(self.mesh, P(*axes)))


@dataclass(frozen=True)
class Parts:
    """What a decoder has, each drawn apart."""

    scanned: bool
    checkpointed: bool
    constrained: bool
    normed: bool
    tied: bool
    biased: bool
    two_heads: bool
    one_hot: bool
    masked: bool
    smoothed: bool
    z_loss: bool
    summed: bool
    flat: bool
    clipped: bool


@dataclass(frozen=True)
class MeshProgram:
    """A step lowered over a mesh, its arguments as they lie, and the type of its products."""

    lowered: Any
    arguments: tuple[Any, ...]
    split: Split
    type: Any


def drawn(seed: int) -> MeshProgram:
    """The program of a seed, over four or all of eight devices."""
    random = np.random.default_rng(seed)

    def chosen(choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    split = _split(random, chosen(MESHES))
    odds = {"scanned": 0.5, "constrained": 0.5, "normed": 0.5, "masked": 0.5, "one_hot": 0.5}
    parts = Parts(**{f.name: random.random() < odds.get(f.name, 0.3) for f in fields(Parts)})
    count, type_ = chosen([0, 1, 2]), chosen([jnp.float32, jnp.float32, jnp.bfloat16])
    parameters, specs = _parameters(random, split, parts, count)
    words = [random.integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32) for _ in range(2)]
    mask = (random.random((BATCH, LENGTH)) < 0.8).astype(np.float32)
    step = _step(_loss(split, parts, type_), parts)
    arguments = (parameters, jax.tree.map(np.zeros_like, parameters), *words, mask)
    data = P(split.batch, split.positions)
    shardings = jax.tree.map(
        lambda spec: NamedSharding(split.mesh, spec), (specs, specs, data, data, data)
    )
    with split.over():
        arguments = jax.device_put(arguments, shardings)
        lowered = jax.jit(step).lower(*arguments)
    return MeshProgram(lowered, arguments, split, type_)


def _split(random: np.random.Generator, shape: tuple[int, ...]) -> Split:
    names = ("x", "y", "z")[: len(shape)]
    explicit = bool(random.random() < 0.35)
    kind = AxisType.Explicit if explicit else AxisType.Auto
    devices = np.asarray(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, names, axis_types=(kind,) * len(shape))
    left = [names[int(place)] for place in random.permutation(len(names))]

    def taken(odds: float, size: int, count: int = 1) -> Axes:
        """So many axes of those left, or none where they do not divide what they are to split."""
        if len(left) < count or random.random() >= odds:
            return None
        axes = tuple(left.pop() for _ in range(count))
        whole = size % math.prod(mesh.shape[axis] for axis in axes) == 0
        return (axes if count > 1 else axes[0]) if whole else None

    batch = taken(0.3, BATCH, count=2) or taken(0.85, BATCH)
    positions, tensor = taken(0.3, LENGTH), taken(0.7, WORDS)
    parameters = batch if random.random() < 0.6 else None
    return Split(mesh, explicit, batch, positions, parameters, tensor)


def _parameters(
    random: np.random.Generator, split: Split, parts: Parts, count: int
) -> tuple[Tree, Tree]:
    """By name the arrays, and how they are split."""

    def normal(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / math.sqrt(shape[-2])).astype(np.float32)

    fsdp, tensor = split.parameters, split.tensor
    found = {
        "words": (normal(WORDS, WIDTH), P(tensor, fsdp)),
        "in": (normal(count, WIDTH, 2 * WIDTH), P(None, fsdp, tensor)),
        "out": (normal(count, 2 * WIDTH, WIDTH), P(None, tensor, fsdp)),
        "scale": (np.ones(WIDTH, np.float32), P()),
    }
    if not parts.tied:
        found["head"] = (normal(WIDTH, WORDS), P(fsdp, tensor))
    if parts.two_heads:
        found["second"] = (normal(WIDTH, WORDS), P(fsdp, tensor))
    if parts.biased:
        found["bias"] = (normal(1, WORDS)[0], P(tensor))
    return {name: w for name, (w, _) in found.items()}, {n: spec for n, (_, spec) in found.items()}


def _loss(split: Split, parts: Parts, type_: Any) -> Callable[..., Any]:
    """The loss of a decoder and how many words it found."""

    def used(w: Any) -> Any:
        return split.gathered(w.astype(type_))

    def layer(h: Any, weights: tuple[Any, Any]) -> tuple[Any, None]:
        up, down = map(used, weights)
        return h + jax.nn.gelu(h @ up) @ down, None

    if parts.checkpointed:
        layer = jax.checkpoint(layer)

    def embedded(table: Any, words: Any) -> Any:
        if not split.explicit:
            return table.astype(type_)[words]
        spec = P(split.batch, split.positions, None)
        return used(table).at[words].get(out_sharding=spec)

    def loss(w: Tree, words: Any, labels: Any, mask: Any) -> Any:
        h = embedded(w["words"], words)
        if parts.constrained:
            h = split.constrained(h, split.batch, split.positions, None)
        if parts.scanned:
            h, _ = lax.scan(layer, h, (w["in"], w["out"]))
        else:
            for number in range(len(w["in"])):
                h, _ = layer(h, (w["in"][number], w["out"][number]))
        if parts.normed:
            squares = h.astype(jnp.float32) ** 2
            h = (h * lax.rsqrt(squares.mean(-1, keepdims=True) + 1e-5) * w["scale"]).astype(type_)
        if parts.flat and not split.explicit and split.positions is None:
            h, labels, mask = h.reshape(-1, WIDTH), labels.reshape(-1), mask.reshape(-1)
        heads = [used(w["words"]).T if parts.tied else used(w["head"])]
        heads += [used(w["second"])] if parts.two_heads else []
        values = [_cross_entropy(split, parts, h @ head, w, labels, mask) for head in heads]
        return sum(value for value, _ in values), values[0][1]

    return loss


def _cross_entropy(
    split: Split, parts: Parts, logits: Any, w: Tree, labels: Any, mask: Any
) -> tuple[Any, Any]:
    logits = logits.astype(jnp.float32)
    if parts.biased:
        logits = logits + split.gathered(w["bias"])
    norm = jax.nn.logsumexp(logits, -1)
    if parts.one_hot or split.explicit:
        label = jnp.where(labels[..., None] == jnp.arange(WORDS), logits, 0).sum(-1)
    else:
        label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    each = norm - label
    if parts.smoothed:
        each = 0.9 * each + 0.1 * (norm - logits.mean(-1))
    if parts.z_loss:
        each = each + 1e-2 * norm**2
    if parts.masked:
        each = each * mask
    count = 1.0 if parts.summed else mask.sum() + 1 if parts.masked else each.size
    return each.sum() / count, (logits.argmax(-1) == labels).sum()


def _step(loss: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    def step(w: Tree, moments: Tree, words: Any, labels: Any, mask: Any) -> Any:
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, count), gradients = gradient(w, words, labels, mask)
        if parts.clipped:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradients)
            moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
            gradients = moments
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradients), moments, value, count

    return step
