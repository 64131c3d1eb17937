"""What strikes a simulated cluster: faults as data, when they come, and what each of them does."""
