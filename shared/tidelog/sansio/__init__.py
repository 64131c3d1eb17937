"""Small things that cores of several services use: effects, counters, timers, token buckets, majorities. Pure."""
