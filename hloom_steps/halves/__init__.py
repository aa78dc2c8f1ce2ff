"""Implements `hloom.split`: the two halves of a step as functions."""
