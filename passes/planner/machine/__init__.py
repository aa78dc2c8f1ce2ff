"""The abstract machine of a straight-line block, and plans near the optimum in it: evictions.

In the order in which they are used:

- ``problem``: the abstract machine, what a sequence of operations takes of it, and a block as a
  problem of it;
- ``eviction``: plans that hold a bound on memory, by evictions at the peak that are improved;
- ``plan``: these as saved values and windows, which `recompute` can write.
"""
