"""The faults of a simulated cluster: faults as data, their schedule, and the effect of each."""
