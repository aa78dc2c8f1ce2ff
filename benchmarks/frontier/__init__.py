"""Memory against added work: passes at many budgets, beside every policy of `jax.checkpoint`."""
