"""What a curve of the report tells of each of its stretches: the values that live there."""
