"""Several dumps at once: an index of the steps of a run, and two dumps side by side."""
