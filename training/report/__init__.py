"""Measures a trained model and writes the published folder with its model card."""
