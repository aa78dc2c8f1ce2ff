"""What only a CUDA GPU can tell, by one command: `python -m benchmarks.gpu --out DIR`.

The process that is started imports neither JAX nor hloom: every item runs in a child of its own,
with a limit of its own, so that what crashes, hangs or runs out of memory loses nothing else.
docs/gpu.md says how to run it, and what its results decided.
"""
