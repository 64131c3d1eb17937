"""HTTP at a gateway: a plain client, and the port without a cluster."""
