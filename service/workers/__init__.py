"""Several whole services behind one port, and the supervisor that starts them."""
