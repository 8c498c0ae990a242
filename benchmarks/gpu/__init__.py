"""Benchmarks on a GPU machine."""
