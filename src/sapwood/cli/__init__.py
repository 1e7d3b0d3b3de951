"""The command ``sapwood``: one function per verb.

Exit codes: 0 success; 1 failed, as where a file is damaged or a plan does not fit; 2
wrong usage, as for a file that is not there; 130 interrupted.
"""

from sapwood.cli.arguments import main

__all__ = ["main"]
