"""Made-up lifetimes and traces, to test planners and allocators with."""
