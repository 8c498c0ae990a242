"""The training run, its measurements and the model card."""
