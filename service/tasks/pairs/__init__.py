"""What a model says of two texts: next sentence, relevance, similarity, answers, choices."""
