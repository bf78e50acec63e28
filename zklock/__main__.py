"""``python -m zklock``: the command, where its script is not on the path."""

import sys

from zklock.cli import main

if __name__ == "__main__":
    sys.exit(main())
