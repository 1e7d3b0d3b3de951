"""Replaying a recording, and calls like the one before at once."""
