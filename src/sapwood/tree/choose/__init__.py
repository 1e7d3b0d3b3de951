"""Which recording fits a call, and what to do where none does."""
