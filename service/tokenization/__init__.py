"""Texts to token ids and back, and the check of a tokenizer before it is used."""
