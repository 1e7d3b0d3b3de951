"""``python -m sapwood`` is the command ``sapwood``."""

from __future__ import annotations

import sys

from sapwood.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
