"""What hloom knows of the IR: operations, types, marks, and walking, cloning, rewriting."""
