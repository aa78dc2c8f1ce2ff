"""Forces of molecules: the gradient of |gradient of an energy|², through scanned layers.

The energy is of continuous filters over the distances of all pairs of atoms.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.common import Checkpoint, Parameters, shaped

LAYERS, WIDTH, RADIAL = 6, 128, 32
MOLECULES, ATOMS = 16, 64


def program(checkpoint: Checkpoint) -> tuple[Any, tuple[Any, ...]]:
    """`value_and_grad`, by the parameters, of the mean squared force in float32; its arguments."""
    layer = checkpoint(_layer)

    def energy(positions: jax.Array, parameters: Parameters, kinds: jax.Array) -> jax.Array:
        apart = positions[:, :, None] - positions[:, None]
        # Not zero at an atom's own place, where a root has no gradient.
        distances = jnp.sqrt((apart**2).sum(-1) + 1e-3)
        centers = jnp.linspace(0.0, 6.0, RADIAL)
        radial = jnp.exp(-4.0 * (distances[..., None] - centers) ** 2)

        def step(atoms: jax.Array, p: Parameters) -> tuple[jax.Array, None]:
            return layer(atoms, radial, p), None

        atoms, _ = jax.lax.scan(step, parameters["kinds"][kinds], parameters["layers"])
        return (_shifted_softplus(atoms @ parameters["enter"]) @ parameters["out"]).sum()

    def loss(parameters: Parameters, positions: jax.Array, kinds: jax.Array) -> jax.Array:
        return (jax.grad(energy)(positions, parameters, kinds) ** 2).mean()

    shapes = {
        "filter_in": (RADIAL, WIDTH),
        "filter_out": (WIDTH, WIDTH),
        "enter": (WIDTH, WIDTH),
        "mix": (WIDTH, WIDTH),
        "leave": (WIDTH, WIDTH),
    }
    parameters: Parameters = {
        "kinds": shaped(16, WIDTH),
        "layers": {name: shaped(LAYERS, *shape) for name, shape in shapes.items()},
        "enter": shaped(WIDTH, WIDTH),
        "out": shaped(WIDTH, 1),
    }
    data = (shaped(MOLECULES, ATOMS, 3), shaped(MOLECULES, ATOMS, dtype="int32"))
    return jax.value_and_grad(loss), (parameters, *data)


def _layer(atoms: jax.Array, radial: jax.Array, p: Parameters) -> jax.Array:
    filters = _shifted_softplus(radial @ p["filter_in"]) @ p["filter_out"]
    heard = jnp.einsum("mijw,mjw->miw", filters, atoms @ p["enter"])
    return atoms + _shifted_softplus(heard @ p["mix"]) @ p["leave"]


def _shifted_softplus(x: jax.Array) -> jax.Array:
    return jax.nn.softplus(x) - jnp.log(2.0)
