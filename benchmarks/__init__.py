"""Measurements: one command each, every comparison interleaved in one run, results as a table and as JSON with the machine named."""
