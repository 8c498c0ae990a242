"""Trains the small bilingual BERT that the project bundles; needs the extra `[train]`."""
