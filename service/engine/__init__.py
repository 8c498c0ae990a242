"""The model and its runtime in this process."""
