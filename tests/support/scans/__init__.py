"""Scans for remat: programs that stacks connect, and a pass that treats loops alone."""
