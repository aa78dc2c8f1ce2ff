"""Recomputation: which values the backward pass computes again, and how that is written.

Knows no budget: a price of time, in bytes, says what recomputation is worth.

- ``plan``: the plan of a module, and its cheap work alone as one; how a plan is written;
- ``block/`` plans and rewrites straight-line code, ``scan/`` loops that stacks connect;
- ``decisions``: a plan taken apart for ``bisect``.
"""
