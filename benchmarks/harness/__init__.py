"""What all benchmarks share: clients, checkpoints, processes, results."""
