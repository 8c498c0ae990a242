"""Reads trained checkpoints: configuration, weights, families."""
