"""The IR: facts of operations, types, marks, and functions that walk, clone and rewrite it."""
