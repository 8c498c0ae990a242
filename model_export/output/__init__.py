"""Writes artifact folders."""
