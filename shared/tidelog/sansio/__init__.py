"""Small things that cores of several services use: effects, counters, token buckets, who is in the majority. Pure."""
