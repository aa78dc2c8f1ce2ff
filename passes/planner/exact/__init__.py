"""The optimum of small straight-line blocks: what is recomputed where, by integer programming.

In the order in which they are used:

- ``problem``: the abstract machine, and what a sequence of operations takes of it;
- ``machine``: a block as a problem of that machine, and a schedule of clones as a sequence;
- ``windows``: the sequence of saved values and windows, and the best windows for saved values;
- ``program``: the problem as an integer program;
- ``optimum``: the least added time within a bound on memory, and the least memory at all;
- ``plan``: the optimum as saved values and windows, which `remat` can write.
"""
