"""Faults of the product that are planted to be found, and records that are altered with a right checksum."""
