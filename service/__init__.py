"""Serves an exported BERT over REST: the requests of all tasks share one queue and one graph, without padding."""

import os
import sys

STREAMS = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}


def _open_closed_streams() -> None:
    """Puts /dev/null in the place of closed standard descriptors, before a socket or a file gets their numbers: what
    the process or a library logs would be written to it. The processes that this one starts inherit them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) in STREAMS:
        os.set_inheritable(descriptor, True)
        name, mode = STREAMS[descriptor]
        setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - as long as the process
    os.close(descriptor)


_open_closed_streams()
