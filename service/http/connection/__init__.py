"""One HTTP connection: how its responses are written, and what ends with it."""
