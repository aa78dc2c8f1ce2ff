"""`hloom-opt` reads IR, runs passes, and prints IR.

`hloom-opt --help` shows the options. The module is read in a context with every dialect that JAX
uses, and no JAX backend is started.
"""

from hloom_tools.opt.command import main

__all__ = ["main"]
