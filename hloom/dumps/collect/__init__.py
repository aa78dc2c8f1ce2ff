"""Collects a module's states during its compile, and a step's arrays during its run."""
