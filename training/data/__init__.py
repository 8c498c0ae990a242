"""Corpus, vocabulary and training batches."""
