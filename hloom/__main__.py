"""`python -m hloom` is `hloom`."""

import sys

from hloom_tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
