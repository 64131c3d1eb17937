"""Small pure things that cores of several services use: effects, counters, token buckets, majorities of copies."""
