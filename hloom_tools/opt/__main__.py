"""`python -m hloom_tools.opt` is `hloom-opt`."""

import sys

from hloom_tools.opt.command import main

if __name__ == "__main__":
    sys.exit(main())
