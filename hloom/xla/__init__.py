"""Pure readers of what XLA made of a module: its HLO, its buffers, its live ranges, its thunks."""
