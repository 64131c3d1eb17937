"""Records on the command line: ``tidelog produce`` and ``tidelog consume``."""
