"""Which recording fits a call, and everything that follows from the answer."""
