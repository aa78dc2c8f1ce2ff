"""Pure analyses over StableHLO: they read a module and never edit it."""
