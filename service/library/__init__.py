"""For Python programs: the engine in this process, the client of a service, and files answered by either."""
