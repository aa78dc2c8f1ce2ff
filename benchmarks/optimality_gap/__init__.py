"""How far the plans of `remat` are from the optimum, on graphs that are small enough to know it."""
