"""Display of figures, names and pictures: units, terminals, colours."""
