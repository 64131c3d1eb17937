"""The coordinator of transactions."""
