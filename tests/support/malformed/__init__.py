"""Custom calls that no lowering writes, and a process that runs them."""
