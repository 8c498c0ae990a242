"""The request queue, the batcher and their records."""
