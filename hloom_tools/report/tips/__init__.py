"""Tips on a curve of the report: the values that live in each of its stretches."""
