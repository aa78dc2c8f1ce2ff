"""`remat` to a budget: estimates of candidate plans, the search over them, the closed loop.

In the order in which they are used:

- ``price_grid``: the candidates: a window length and a price of recomputation each;
- ``pricing``: the time and the price of recomputing an operation;
- ``block_plans``: a candidate's clones in straight-line blocks;
- ``loop_effects``: what a candidate's rewritten loops change in the block around them;
- ``traced_clones``: the memory trace of a block with a candidate's clones in it;
- ``estimate``: a candidate's memory and added time, from the three before;
- ``search``: the candidates that are estimated for a bound on memory;
- ``closed_loop``: the candidate to compile next, given XLA's figures of earlier attempts;
- ``added_work``: the FLOPs and seconds that plans add.
"""
