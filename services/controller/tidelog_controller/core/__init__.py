"""The sans-I/O core of the controller."""
