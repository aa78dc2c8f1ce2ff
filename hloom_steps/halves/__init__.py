"""The two halves of a step as functions: `hloom.split`."""
