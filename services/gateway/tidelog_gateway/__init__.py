"""The gateway: the client plane."""
