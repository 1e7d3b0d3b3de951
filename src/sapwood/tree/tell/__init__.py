"""What is told of the calls of a function: counts, misses, and why."""
