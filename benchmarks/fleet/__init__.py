"""Replicas behind a balancer in simulated time: the service's own queue; runs, clients and time are models.

`python -m benchmarks.fleet` simulates and writes the tables of docs/operate/fleet.md.
"""
