"""The optimum of small straight-line blocks: what is recomputed where, by integer programming.

In the order in which they are used:

- ``problem``: the abstract machine, what a sequence of operations takes of it, and a block as a
  problem of it;
- ``optimum``: the problem as an integer program; the least added time within a bound on memory, and
  the least memory at all;
- ``plan``: the optimum as saved values and windows, which `recompute` can write.
"""
