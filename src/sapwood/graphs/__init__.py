"""Recordings as data, and recordings as the driver runs them."""
