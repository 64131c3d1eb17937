"""The protocol: messages, their codec, and the sans-I/O session."""
