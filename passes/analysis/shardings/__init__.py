"""Shardings: the placements of values by Shardy, and the constraints that these already imply.

- `propagation.propagate` runs Shardy's propagation on a clone, once for a module and its clones;
  `readings` rewrites the clone to the form that XLA propagates on; `rules` adds the signatures of
  CHLO's operations, which Shardy does not know.
- `exchanges.exchanges_of` has Shardy partition it; `products` splits matrix products as XLA does.
- `shardings.Shardings` has the placement of each value, its local shape and its share.
- `implied.implied_constraints` finds the sharding constraints that propagation satisfies anyway,
  and `constraints.moves_nothing` those that provably move no data.

`ir/shardings` reads a sharding attribute.
"""
