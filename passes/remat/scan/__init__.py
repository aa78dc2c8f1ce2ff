"""`remat` in loops: what a scan stacks for its backward loop, and what that loop recomputes.

In the order in which they run:

- ``bodies``: the forward bodies of a pair of loops and of the pairs inside it;
- ``cut``: one cut problem over all these bodies: the values to save;
- ``sites``: the clones that follow from a cut, and where the backward bodies use them;
- ``plan``: the cheapest cut at a price, as the plan of the pair;
- ``budgeted``: the cheapest cuts of all scans of a block within a number of bytes;
- ``rewrite``: the plan, written into the two loops.
"""
