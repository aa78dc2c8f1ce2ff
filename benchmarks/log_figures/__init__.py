"""What the log says of memory before and after, beside XLA's own figures, for steps of others."""
