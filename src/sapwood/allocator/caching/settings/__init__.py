"""What an allocator may be told: typed, checked as a whole, and as text."""

from sapwood.allocator.caching.settings.settings import (
    DEFAULT,
    VARIABLE,
    Settings,
    settings_of,
)

__all__ = ["DEFAULT", "VARIABLE", "Settings", "settings_of"]
