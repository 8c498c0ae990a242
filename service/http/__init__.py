"""HTTP: connections, routes, requests and responses."""
