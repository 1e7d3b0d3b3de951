"""What a call is: its arguments, its arrays, and what kind of call that makes it."""
