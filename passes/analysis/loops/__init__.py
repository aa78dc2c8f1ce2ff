"""Loops: their trip counts, their carries, and pairs of a forward and a backward loop."""
