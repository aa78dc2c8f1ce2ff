"""`hloom bisect`: finds the pass and the decision that change a result or raise the peak."""
