"""Training steps of packages that are not hloom's, each small enough to be compiled in seconds.

A program is a function that imports what it needs and gives a step and the shapes of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.log_figures import methods, networks
from benchmarks.log_figures.common import Program

PROGRAMS: dict[str, tuple[str, Callable[[], Program]]] = {
    "Flax nnx, decoder": ("flax", networks.flax_nnx),
    "Flax linen, strided convolutions": ("flax", networks.flax_linen),
    "Flax linen, scan of minibatches": ("flax", networks.flax_minibatches),
    "Haiku, transformer": ("dm-haiku", networks.haiku),
    "Equinox, MLP-Mixer": ("equinox", networks.equinox),
    "optax, MultiSteps": ("optax", methods.optax_multisteps),
    "optax, adversarial inputs": ("optax", methods.optax_adversarial),
    "brax, PPO": ("brax", methods.brax_ppo),
    "flowjax, masked autoregressive flow": ("flowjax", methods.flowjax),
    "transformers, GPT-2": ("transformers", networks.transformers_gpt2),
    "transformers, ViT": ("transformers", networks.transformers_vit),
    "penzai, Llama-like": ("penzai", networks.penzai),
    "diffrax, neural ODE": ("diffrax", methods.diffrax),
    "jraph, message passing": ("jraph", methods.jraph),
    "numpyro, variational autoencoder": ("numpyro", methods.numpyro),
    "rlax, recurrent Q-learning": ("rlax", methods.rlax),
}
"""By name: the package that it needs, as pip calls it, and the function that makes it."""
