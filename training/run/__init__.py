"""The training run: recipe, schedule, optimizers, worker processes and their saved state."""
