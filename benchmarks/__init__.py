"""Measures speed, accuracy and behaviour under load; `pip install -r benchmarks/requirements.txt` brings what only this package needs."""
