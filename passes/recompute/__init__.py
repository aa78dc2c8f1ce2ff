"""Recomputation plans which values the backward pass computes again, and writes these plans.

It knows no budget: a price of time, in bytes, gives the worth of recomputation.

- ``plan``: the plan of a module, also of its cheap work alone; how a plan is written;
- ``block/`` plans and rewrites straight-line code, ``scan/`` loops that stacks connect;
- ``decisions``: a plan taken apart for ``bisect``.
"""
