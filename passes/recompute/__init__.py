"""Recomputation: which values the backward pass computes again, and how that is written.

Knows no budget: a price of time, in bytes, says what recomputation is worth.

- ``block/`` plans and rewrites straight-line code, ``scan/`` loops that stacks connect;
- ``decisions``: a plan taken apart for ``bisect``.
"""
