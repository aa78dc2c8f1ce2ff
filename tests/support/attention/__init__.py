"""Ways to write attention, and what only looks like it."""
