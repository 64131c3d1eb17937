"""The sans-I/O cores of the client: what a producer, a consumer and a group member decide, without socket or
clock."""
