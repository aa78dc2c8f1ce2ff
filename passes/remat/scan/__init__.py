"""`remat` in loops: what a scan stacks for its backward loop, and what that recomputes."""
