"""The command ``sapwood``: one function per verb.

Exit codes: 0 success; 1 failed, as where a plan does not fit, a store holds what is
damaged or a disk is full; 2 wrong usage, as for a file that is not there, or not what
it should be; 130 interrupted.
"""

from sapwood.cli.arguments import main

__all__ = ["main"]
