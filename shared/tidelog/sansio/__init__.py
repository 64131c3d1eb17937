"""Small things that cores of several services use: effects, counters, who is in the majority. Pure."""
