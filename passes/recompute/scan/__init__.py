"""Recomputation in loops: what a scan stacks for later loops, and what these recompute.

In the order in which they run:

- ``groups``: the loops of a block that stacks connect, with what one reads of another;
- ``bodies``: the forward body of a loop and those of the pairs inside it;
- ``cut``: one cut problem over all these bodies: the values to save;
- ``sites``: the clones that follow from a cut, and where the backward bodies use them;
- ``plan``: the cheapest cut at a price, or within a number of bytes, as the plan of the group;
- ``rewrite``: the plan, written into the loops;
- ``waits``: what a rewritten backward loop waits for, so that large values die before it.
"""
