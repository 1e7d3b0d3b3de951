"""Functions with eager regions: recorded and replayed as chains of parts."""
