"""Trains the small bilingual BERT that the project bundles; the only package here that imports torch."""
