"""An API worker: HTTP on a port that all API workers share, in front of the engine worker."""

import socket

from service.artifact import Artifact
from service.http.server import build, run
from service.metrics import Metrics
from service.settings import Settings
from service.workers.child import WorkerSpec, run_child
from service.workers.remote_backend import RemoteBackend


def work(spec: WorkerSpec, settings: Settings, artifact: Artifact) -> int:
    return run(
        build(settings, RemoteBackend(spec, settings, artifact, Metrics())), [socket.socket(fileno=spec.listener)]
    )


if __name__ == "__main__":
    run_child(work)
