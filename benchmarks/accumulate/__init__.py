"""Gradient accumulation by `accumulate` beside the same loop written by hand, for H100s."""
