"""The device, behind one Protocol, and streams and events as objects."""
