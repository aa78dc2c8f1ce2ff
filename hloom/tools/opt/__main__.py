"""`python -m hloom.tools.opt` is `hloom-opt`."""

import sys

from hloom.tools.opt.command import main

if __name__ == "__main__":
    sys.exit(main())
