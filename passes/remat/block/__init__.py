"""`remat` in straight-line code: what a block saves, what it recomputes, and where."""
