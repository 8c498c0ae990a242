"""Ray Serve and Ray Data on a cluster of three nodes on this machine, one of which is killed: `make test-ray`."""

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import ray
from pyarrow import parquet
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions

from benchmarks.harness.process import free_port
from tests import paths
from tests.export.goldens import Artifact

DEPLOY = paths.ROOT / "deploy" / "ray"
TEXTS = [f"the dog number {number} is hairy" for number in range(9)]
CLIENTS, REQUESTS = 8, 60  # of each client
ROWS = 60_000
FORMS = [
    ("/embed", {"inputs": TEXTS}),
    ("/v1/embeddings", {"input": TEXTS, "model": "x"}),
    ("/fill-mask", {"inputs": "my [MASK] is hairy"}),
    ("/nsp", {"inputs": [["my dog", "is hairy"]]}),
    ("/tokenize", {"inputs": TEXTS}),
    ("/embed", {"inputs": []}),
    ("/predict", {"inputs": "no such head"}),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The head has the controller and the proxy and runs no engine."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(paths.ROOT), str(DEPLOY)])  # of the nodes, and so of their workers
    os.environ.update(RAY_raylet_start_wait_time_s="300")  # on a busy machine
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"head": 1}})
    for _ in range(2):
        made.add_node(num_cpus=2)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False)
    yield made
    serve.shutdown()
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def url(cluster: Cluster, bert_artifact: Path) -> str:  # noqa: ARG001 - it is running
    sys.path.append(str(DEPLOY))
    bert_serve = import_module("bert_serve")
    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host="127.0.0.1", port=port))
    arguments = {"model": str(bert_artifact), "threads": "2", "min_replicas": "2"}  # one replica on each node
    serve.run(bert_serve.app(arguments))
    return f"http://127.0.0.1:{port}"


def send(client: httpx.Client, route: str, body: Any) -> tuple[httpx.Response, int]:
    """The response, and how often the request was sent again, as a client with a retry does."""
    for repeats in range(100):
        try:
            response = client.post(route, json=body)
        except httpx.TransportError:
            continue
        if response.status_code < 500 or response.status_code == 501:
            return response, repeats
    raise AssertionError(f"{route} was not answered after 100 times")


def test_all_routes_answer_as_the_service_does(url: str, server: httpx.Client) -> None:
    own_id = {"x-request-id": "the-same"}
    with httpx.Client(base_url=url, timeout=60) as client:
        for route, body in FORMS:
            found, expected = (one.post(route, json=body, headers=own_id) for one in (client, server))
            assert found.status_code == expected.status_code
            assert found.content == expected.content
        npy = {"accept": "application/x-npy"}
        vectors = [one.post("/embed", json={"inputs": TEXTS}, headers=npy).content for one in (client, server)]
        assert vectors[0] == vectors[1]
        assert client.get("/ready").json() == {"status": "ready"}
        assert "bert_tokens_total" in client.get("/metrics").text


def test_a_killed_node_loses_no_request_that_is_sent_again(cluster: Cluster, url: str, server: httpx.Client) -> None:
    expected = server.post("/embed", json={"inputs": TEXTS}).content
    counts: Counter[str] = Counter()
    begun = threading.Event()

    def work() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            for number in range(REQUESTS):
                response, repeats = send(client, "/embed", {"inputs": TEXTS})
                counts["right" if response.content == expected else "wrong"] += 1
                counts["repeated"] += repeats
                if number == REQUESTS // 4:
                    begun.set()

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    assert begun.wait(120)
    cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
    for thread in threads:
        thread.join()
    assert counts["right"] == CLIENTS * REQUESTS
    assert counts["wrong"] == 0
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()


def kill_node_when_rows_are_written(cluster: Cluster, folder: Path) -> None:
    ended = threading.Event()
    while not list(folder.glob("*.parquet")):
        ended.wait(0.1)
    cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)


def test_a_bulk_job_has_every_row_once_although_a_node_is_killed(
    cluster: Cluster, exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    serve.shutdown()  # its replicas take the CPUs
    source, output = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    with source.open("w", encoding="utf-8") as file:
        for number in range(ROWS):
            file.write(json.dumps({"id": number, "text": f"dog {number % 977}"}) + "\n")
    sys.path.append(str(DEPLOY))
    bert_bulk = import_module("bert_bulk")
    killer = threading.Thread(target=kill_node_when_rows_are_written, args=(cluster, tmp_path / "out.parquet.writing"))
    killer.start()
    assert bert_bulk.main([str(source), str(output), "--model", str(exported("bert").root)]) == 0
    killer.join()
    assert len(cluster.worker_nodes) == 1
    table = parquet.read_table(output)
    assert table["id"].to_pylist() == list(range(ROWS))
    vectors = np.asarray(table["output"].to_pylist()[:977], np.float32)
    assert np.array_equal(np.asarray(table["output"].to_pylist(), np.float32), vectors[np.arange(ROWS) % 977])
