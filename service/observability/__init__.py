"""The Prometheus metrics, and the traces: what is counted and recorded, and how it is written."""
