"""Kafka for tests that need no Java."""
