"""Loss heads of language models: ways to write them, and the memory that they take."""
