"""`python -m hloom.opt` is `hloom-opt`."""

import sys

from hloom.opt.command import main

if __name__ == "__main__":
    sys.exit(main())
