"""Collects a module's states while it is compiled, and a step's arrays while it runs."""
