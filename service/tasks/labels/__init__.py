"""The labels of fine-tuned classifiers, for texts and for tokens."""
