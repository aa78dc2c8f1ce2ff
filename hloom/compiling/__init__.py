"""The compile of one module: passes, lowering, XLA, attempts of measured passes."""
