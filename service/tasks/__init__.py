"""The tasks: from a request's texts to its answer."""
