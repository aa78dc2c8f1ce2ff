"""Recomputation in straight-line code: which values a block saves, which it recomputes, and where.

In the order in which they run:

- ``values``: the block's forward values, their sizes, prices and backward readers;
- ``windows``: the backward pass in windows, and the minimum cut of each: the values to save;
- ``schedule``: where each window's recomputed values are cloned, by index;
- ``traced_clones``: the schedule in the memory trace of the block, a dry run;
- ``plan``: the schedule as operations and values, which `bisect` can divide and people can read;
- ``rewrite``: the plan, written into the block.
"""
