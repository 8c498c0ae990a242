"""An API process: HTTP on a port that it shares with the others, in front of an engine in another process."""

import socket

from service.artifact import Artifact
from service.http.server import build, run
from service.metrics import Metrics
from service.settings import Settings
from service.workers.child import WorkerSpec, run_child
from service.workers.remote_backend import RemoteBackend


def work(post: WorkerSpec, settings: Settings, artifact: Artifact) -> int:
    return run(
        build(settings, RemoteBackend(post, settings, artifact, Metrics())), [socket.socket(fileno=post.listener)]
    )


if __name__ == "__main__":
    run_child(work)
