"""Builds and owns everything; loads integrations by name."""
