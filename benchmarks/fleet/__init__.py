"""Replicas behind a balancer in simulated time: each has the service's own queue; only runs, clients and time are models.

`python -m benchmarks.fleet` simulates; `benchmarks.tables` writes the tables of docs/scale.md from its results.
"""
