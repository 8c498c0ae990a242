"""The scenarios of `benchmarks.server.overload`, a function each: sends its load to a server and returns findings."""
