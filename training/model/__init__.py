"""The network that is trained, its losses and its files."""
