"""What became of capture regions: compiling with them, and reading back what XLA captured."""
