"""The command ``sapwood``: one function per verb.

Exit codes: 0 as promised; 1 a promise was not kept, and which; 2 wrong usage, or
something that the verb needs is not installed.
"""

from sapwood.cli.arguments import main

__all__ = ["main"]
