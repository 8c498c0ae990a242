"""The model that is trained, and its losses."""
