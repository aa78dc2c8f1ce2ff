"""The way of a module through a compile: passes, lowering, XLA, attempts of measured passes."""
