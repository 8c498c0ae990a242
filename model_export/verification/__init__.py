"""Checks a graph against a float64 reference."""
