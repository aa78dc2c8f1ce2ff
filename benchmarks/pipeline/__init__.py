"""Pipelines of scanned steps: values, memory and collectives."""
