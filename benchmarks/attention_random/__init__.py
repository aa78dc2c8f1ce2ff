"""Random programs with attention, and random changes of them, before and behind `attention`.

    python -m benchmarks.attention_random --programs 500 --mutants 200

Each program is drawn from a seed: letters and their order, heads that share keys, masks and biases,
where the scale is, how the softmax is written, `vmap`, `jax.checkpoint`, scans. It is lowered with
its gradients, changed by the pass, which writes what the kernel computes, and run by StableHLO's
interpreter. A mutant is such a module with one operation changed, in the forward or in the backward
code: the pass has to leave it, or to give what it gives.
"""
