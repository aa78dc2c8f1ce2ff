"""The way of a module through a compile: passes, lowering, XLA, and the attempts of measured passes."""
