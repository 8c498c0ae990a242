"""What is tried in a process of its own, because it can end or block a process."""
