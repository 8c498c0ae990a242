"""Further graphs of the artifact, opened when a request first asks for them."""
