"""Why memory ran out, who holds it, and what would have fitted."""
