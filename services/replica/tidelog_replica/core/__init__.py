"""The sans-I/O cores of the replica server: they decide with offsets and never move a byte."""
