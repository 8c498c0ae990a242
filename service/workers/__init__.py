"""Several processes: API workers in front of one engine worker."""
