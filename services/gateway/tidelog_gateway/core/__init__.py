"""The sans-I/O cores of the gateway."""
