"""Reads dumps: complete ones, and the intact parts of damaged ones."""
