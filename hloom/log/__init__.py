"""What hloom says while it works: a line for each large program, attempts, a summary."""
