"""HTTP at the port of real gateways, as it reaches them from outside."""
