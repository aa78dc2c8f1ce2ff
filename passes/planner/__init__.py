"""The planner of memory: recomputation and other moves that hold a budget in the least added time.

In the order in which a module passes through it:

- ``candidates``: a window length and a price of recomputation each, and the moves before it;
- ``block_plans``, ``loop_effects``: a candidate's clones in straight-line blocks, and what its
  rewritten loops change around them;
- ``model``: a candidate's memory and added time;
- ``search``: the candidates that are estimated for a bound on memory; ``exact/``: the optimum of
  small blocks among them;
- ``moves``, ``variants``, ``moves_search``: what other passes make of the program before;
- ``loop``: the candidate to compile next, given XLA's figures of earlier attempts;
- ``plan``, ``planner``: the plan that is made of it; ``record``: what an attempt remembers;
- ``complaint``: what a user is told of a budget that does not hold;
- ``frontier``: what other budgets give.
"""
