"""Vectors of texts, tokens and words; of any layer; sparse ones; cosines."""
