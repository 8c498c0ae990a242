"""Traces of OpenTelemetry: a span for each request with its stages, and one for each batch. Off by default."""
