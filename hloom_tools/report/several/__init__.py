"""Shows several dumps: an index of the steps of a run, and two dumps side by side."""
