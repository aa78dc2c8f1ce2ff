"""What is collected of a module while it is compiled, and of a step while it runs."""
