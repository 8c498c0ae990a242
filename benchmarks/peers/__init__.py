"""Other servers, each in an environment of its own, with the same weights and texts as ours."""
