"""Rules broken on purpose: each must be noticed by the simulation."""
