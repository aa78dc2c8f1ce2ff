"""Pure readers of XLA's output for a module: its HLO, buffers, live ranges, thunks."""
