"""Figures, with the scripts that make them: `python -m benchmarks.<name>` in the repository."""
