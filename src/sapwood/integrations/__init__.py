"""One framework each, imported only with its framework."""
