"""Masked words: one, whole words, several together; the likelihood of sentences."""
