"""Shardings: where Shardy places values, and which constraints say no more than that."""
