"""How figures, names and pictures are shown to people: units, terminals, colours."""
