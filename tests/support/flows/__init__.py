"""Flows of a dimension: programs, and what they give chunk by chunk."""
