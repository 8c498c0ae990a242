"""The heads of the graph, and what they are made of."""
