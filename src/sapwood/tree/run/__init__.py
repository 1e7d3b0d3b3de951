"""One graphed function's calls: warmed up, recorded, replayed, or run eagerly."""
