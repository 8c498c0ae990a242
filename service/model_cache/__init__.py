"""From a model's name to an artifact: downloads and exports it in a child process, once, and keeps the result."""
