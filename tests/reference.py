"""`-p tests.reference`: guards and replays in C are taken for not built.

All laws hold of the reference, too: the miss path, which decides every call in Python.
"""

from __future__ import annotations

import sys

for name in ("sapwood._fast._state", "sapwood._fast._native"):
    sys.modules[name] = None
