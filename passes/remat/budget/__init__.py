"""`remat` to a budget: estimates of candidate plans, the search over them, the closed loop."""
