"""Reads tokenizer files and writes one tokenizer.json."""
