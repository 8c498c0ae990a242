"""How weights are stored: safetensors, PyTorch's pickles read without executing them, and what to do with the rest."""
