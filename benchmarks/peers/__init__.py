"""Other servers, each in an environment of its own, with the same weights and the same texts. `python -m benchmarks.peers` runs them."""
