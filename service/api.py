"""An API process: HTTP on a socket that it shares with the others, in front of an engine in another process."""

import socket

from service.artifact import Artifact
from service.child import Post, run_child
from service.front import Front
from service.metrics import Metrics
from service.server import build, run
from service.settings import Settings


def work(post: Post, settings: Settings, artifact: Artifact) -> int:
    return run(build(settings, Front(post, settings, artifact, Metrics())), [socket.socket(fileno=post.listener)])


if __name__ == "__main__":
    run_child(work)
