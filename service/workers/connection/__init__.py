"""The parts of both ends of the connection between an API worker and the engine worker."""
