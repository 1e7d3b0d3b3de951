"""A recording in the tree: what it may be replayed on, and what it returns."""
