"""`hloom capture`: the share of a program that XLA captures in CUDA graphs."""
