"""The inputs of parts of the graph, and the rows of their outputs: one module for each part. NumPy alone."""
