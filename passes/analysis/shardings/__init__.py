"""Shardings: where Shardy places values, and which constraints say no more than that.

- `propagation.propagate` runs Shardy's propagation on a clone, once for a module and its clones;
  `readings` makes the clone what XLA propagates on; `rules` gives it the signatures of CHLO's
  operations, which it does not know.
- `exchanges.exchanges_of` has Shardy partition it; `products` splits matrix products as XLA does.
- `shardings.Shardings` has the placement of each value, its local shape and its share.
- `implied.implied_constraints` finds the sharding constraints that propagation satisfies anyway,
  and `constraints.moves_nothing` those that provably move no data.

What a sharding says, `ir/shardings` reads.
"""
