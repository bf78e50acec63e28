"""``python -m zklock.cli``."""

import sys

from zklock.cli import main

if __name__ == "__main__":
    sys.exit(main())
