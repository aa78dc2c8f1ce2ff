"""How far predicted frontiers are from XLA, and what an estimate costs beside a compile."""
