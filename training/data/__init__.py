"""Corpus, vocabulary and training rows; knows nothing of torch."""
