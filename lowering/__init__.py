"""Marks to kernels: what the passes marked becomes custom calls, or what the marks mean."""
