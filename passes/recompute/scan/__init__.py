"""Recomputation in loops decides which values a scan stacks and which later loops recompute.

In the order in which they run:

- ``groups``: the loops of a block that stacks connect, with the values that they read of each
  other;
- ``bodies``: the forward body of a loop and those of the pairs inside it;
- ``cut``: one cut problem over all these bodies: the values to save;
- ``sites``: the clones that follow from a cut, and where the backward bodies use them;
- ``plan``: the cheapest cut at a price, or within a number of bytes, as the plan of the group;
- ``rewrite``: the plan, written into the loops;
- ``waits``: the values that a rewritten backward loop waits for, so that large ones die before it.
"""
