"""Writing dumps, in the background and whole."""
