"""The invariants that are checked after every step, and what the checks remember of the system."""
