"""What hloom says while it works: a line for each program of weight, attempts, a summary."""
