"""The replica server: the log."""
