"""``python -m sapwood`` is the command ``sapwood``."""

import sys

from sapwood.cli import main

if __name__ == "__main__":
    sys.exit(main())
