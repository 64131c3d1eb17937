"""What must hold after every step, and what the checks remember of the system beside it."""
