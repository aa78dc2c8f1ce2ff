"""Dumps: module states at chosen passes and steps, on disk, and reading them back."""
