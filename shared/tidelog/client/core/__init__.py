"""The sans-I/O cores of the client: what a producer and a consumer decide, without socket or clock."""
