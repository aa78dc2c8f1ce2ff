"""Recomputation in straight-line code plans which values a block saves and recomputes, and where.

In the order in which they run:

- ``values``: the block's forward values, their sizes, prices and backward readers;
- ``windows``: the backward pass in windows, and the minimum cut of each: the values to save;
- ``schedule``: where each window's recomputed values are cloned, by index, and the trace with them;
- ``plan``: the schedule as operations and values, which `bisect` can divide and people can read;
- ``rewrite``: the plan, written into the block.
"""
