"""Benchmarks of the whole server over HTTP."""
