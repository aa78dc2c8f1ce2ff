"""The parts of `python -m benchmarks.gpu`, and what their items run."""
