"""The log: a line for each large program, attempts, a summary."""
