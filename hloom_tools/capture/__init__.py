"""`hloom capture` shows the share of a program that XLA captures in CUDA graphs."""
