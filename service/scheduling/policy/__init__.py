"""The arithmetic of the queue's policy: the order, the estimated wait, the return of refused requests."""
