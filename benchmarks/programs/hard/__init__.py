"""Programs whose peak does not lie in layers that a checkpoint each would settle."""
