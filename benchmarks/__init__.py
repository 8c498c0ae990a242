"""Measures speed, accuracy and behaviour under load; requirements.txt lists what only this package needs."""
