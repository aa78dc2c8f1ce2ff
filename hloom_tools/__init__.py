"""The tools package: reads dumps and modules and reports to users, one module per command.

`cli` starts them. It imports neither JAX nor `hloom`, which take a second of CPU, for help, the
version and the names of the commands. `hloom/api.py` lists the names that the tools import from
`hloom`.
"""
