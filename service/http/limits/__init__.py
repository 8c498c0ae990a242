"""What one request may cost, and all of them together: the structure of a body, bytes held, connections."""
