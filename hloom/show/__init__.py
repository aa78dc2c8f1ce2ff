"""Display of figures and names: units, terminals."""
