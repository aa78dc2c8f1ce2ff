"""The tools: what reads dumps and modules and talks to people, one module for a command.

`cli` starts them. It brings in neither JAX nor `hloom`, which take a second of CPU, for help, the
version and the names of the commands. What the tools take of `hloom` stands in `hloom/api.py`.
"""
