"""Serves an exported BERT over REST: requests of all tasks share one queue, one graph and one batch, without padding."""
