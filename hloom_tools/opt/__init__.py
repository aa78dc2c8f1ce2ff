"""`hloom-opt`: IR in, passes, IR out.

`hloom-opt --help` shows the options. The module is read in a context with every dialect that JAX
uses, and no JAX backend is started.
"""

from hloom_tools.opt.command import main

__all__ = ["main"]
