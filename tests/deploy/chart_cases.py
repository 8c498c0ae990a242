"""Values of the Helm chart, each changed from its default; what a case changes in the resources is recorded.

`python -m tests.deploy.chart_cases` records the effects anew, after a change that is meant.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.deploy.chart import Rendered, render

EFFECTS = Path(__file__).with_name("chart_effects.json")
FILES = ("PrometheusRule/spec/", "ConfigMap/data/")  # compared with those of deploy/
OF_VERSION = {"helm.sh/chart", "app.kubernetes.io/version"}
Values = dict[str, Any]
MODEL = {"model": "org/model"}
MODELS: Values = {"models": [{"name": "zh", "model": "org/zh"}, {"name": "en", "model": "org/en@main"}]}
PEER = [{"podSelector": {"matchLabels": {"app": "gateway"}}}]
SCRAPER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"autoscaling": {"kind": kind} | more}


EXPORT = {"export": {"initContainer": True}}
CLAIM = {"create": True, "storageClass": "fast"}
NEW_REGISTRY = {"registry": "registry.example.com/team/", "pullPolicy": "Always", "pullSecrets": [{"name": "login"}]}
KEDA = scaled("keda", minReplicas=2, maxReplicas=9, busyRatio=0.6, waitSeconds=2, scaleDownSeconds=60)
KEDA["autoscaling"]["prometheus"] = "http://prometheus.example.com"
KEDA["autoscaling"]["authentication"] = {"name": "prometheus", "modes": "bearer"}
FETCHED = "s3://models/bert"
CERTIFICATE = [{"hosts": ["bert.example.com"], "secretName": "certificate"}]
GATEWAY = [{"name": "gateway", "namespace": "infra"}]
LOG_SHIPPER: dict[str, Any] = {
    "name": "logs",
    "image": "shipper:1",
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    "securityContext": {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    },
}
CASES: dict[str, Values] = {
    "model": {"precision": "int8"},
    "cache of the chart's claim": {
        "cache": {"size": "50Gi", "claim": CLAIM | {"accessMode": "ReadWriteMany"}},
        "replicas": 3,
    },
    "cache of another claim, which one node can mount": {"cache": {"claim": {"create": True, "name": "mine"}}},
    "export in an initContainer": {
        "precision": "int8",
        "export": {"initContainer": True, "resources": {"limits": {"memory": "9Gi"}}},
    },
    "artifact": {"artifact": {"claim": "models", "path": "bert/v2"}},
    "checkpoint of a claim": {"checkpoint": {"claim": "models", "path": "bert/v2"}},
    "models of the hub": MODELS | {"precision": "int8", "podAnnotations": {"a": "b"}},
    "models of claims": {
        "models": [{"name": "zh", "model": "/artifacts/zh"}, {"name": "en", "model": "/checkpoint/en"}],
        "artifact": {"claim": "artifacts"},
        "checkpoint": {"claim": "checkpoints"},
        "networkPolicy": {"enabled": True},
    },
    "models that are artifacts": {
        "models": [{"name": "zh", "model": "/artifacts/zh"}],
        "artifact": {"claim": "artifacts"},
    },
    "checkpoint of an image": {"checkpoint": {"uri": "oci://registry.example.com/bert:2"}},
    "checkpoint of a bucket": {
        "checkpoint": {"uri": FETCHED, "fetchImage": "fetch:1", "fetchSecret": "s3"},
        "cache": {"size": "9Gi"},
    },
    "bf16": {"precision": "bf16"},
    "bf16, after an export": EXPORT | {"precision": "bf16"},
    "image by digest": {"image": {"service": "registry.example.com/packbert@sha256:" + "0" * 64}},
    "strategy and probes": {
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "probes": {
            "startup": {"failureThreshold": 7},
            "liveness": {"timeoutSeconds": 9},
            "readiness": {"periodSeconds": 1},
        },
    },
    "Ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"a": "b"},
            "hosts": ["bert.example.com"],
            "path": "/bert",
            "tls": CERTIFICATE,
        }
    },
    "Ingress that another controller rewrites": {
        "ingress": {"enabled": True, "className": "traefik", "path": "/bert", "annotations": {"a": "b"}}
    },
    "Ingress of all hosts": {"ingress": {"enabled": True}},
    "HTTPRoute": {
        "httpRoute": {
            "enabled": True,
            "annotations": {"a": "b"},
            "parentRefs": GATEWAY,
            "hostnames": ["bert.example.com"],
            "path": "/bert",
        }
    },
    "HTTPRoute of all paths": {"httpRoute": {"enabled": True, "parentRefs": GATEWAY}},
    "dashboard": {"dashboard": {"enabled": True, "labels": {"team": "search"}, "annotations": {"folder": "models"}}},
    "account of the release": {"serviceAccount": {"create": True, "annotations": {"role": "reader"}}},
    "more of the pod": {
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/own"}],
        "initContainers": [{"name": "wait", "image": "wait:1"}],
        "extraContainers": [LOG_SHIPPER],
    },
    "images of a registry": EXPORT | {"image": NEW_REGISTRY},
    "images of a release": EXPORT | {"image": {"version": "1.2.3"}, "gpu": {"count": 1}},
    "the service's image": {"image": {"service": "mine:1"}},
    "the other images": EXPORT | {"image": {"serve": "mine:2", "export": "mine:3"}},
    "settings": {"settings": {"BERT_MAX_BODY_BYTES": 8388608, "BERT_TRUNCATE": True, "BERT_MAX_WAIT_SECONDS": 0.5}},
    "workers": {"workers": 2},
    "workers, after an export": EXPORT | {"workers": 2},
    "secrets": {
        "apiKeys": {"secret": "keys", "key": "all"},
        "adminKey": {"secret": "admin", "key": "swap"},
        "hubToken": {"secret": "hub", "key": "read"},
    },
    "token and variables of an export": EXPORT
    | {"hubToken": {"secret": "hub"}, "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://p:1"}]},
    "no autoscaling": {},
    "HPA": scaled("hpa", minReplicas=2, maxReplicas=9, busyRatio=0.6, waitSeconds=2, scaleDownSeconds=60),
    "KEDA": KEDA,
    "times": {"startupSeconds": 61, "lingerSeconds": 1, "drainSeconds": 2, "preStopSeconds": 4},
    "Service": {"service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}},
    "admin port": {"adminPort": 9000, "serviceMonitor": {"enabled": True}},
    "GPU": {"gpu": {"count": 1, "resource": "nvidia.com/mig-1g.10gb", "runtimeClassName": "nvidia"}},
    "GPU, after an export": EXPORT | {"gpu": {"count": 1}},
    "resources": {"resources": {"requests": {"cpu": "4", "memory": "6Gi"}, "limits": {"memory": "6Gi"}}},
    "the cores of each worker": {"workers": 2, "resources": {"requests": {"cpu": "4500m"}}},
    "a limit of cores, which the service reads": {"resources": {"limits": {"cpu": "4", "memory": "6Gi"}}},
    "threads": {"settings": {"BERT_THREADS": 3}},
    "disruptions": {"podDisruptionBudget": {"maxUnavailable": "25%"}},
    "any disruption": {"podDisruptionBudget": {"enabled": False}},
    "no monitoring": {},
    "monitoring": {
        "serviceMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "x"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "y"}},
    },
    "network": {"networkPolicy": {"enabled": True, "from": PEER, "metricsFrom": SCRAPER, "egress": [{"to": SCRAPER}]}}
    | {"adminPort": 9000},
    "network with metrics on the same port": {
        "artifact": {"claim": "models"},
        "networkPolicy": {"enabled": True, "from": PEER, "metricsFrom": SCRAPER},
    },
    "network from all": {"networkPolicy": {"enabled": True}},
    "pod": {
        "fullnameOverride": "embeddings",
        "serviceAccount": {"name": "reader"},
        "priorityClassName": "high",
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "podSecurityContext": {"fsGroup": 5},
    },
}


def values_of(case: Values) -> Values:
    """With a model, if the case says none."""
    return case if case.keys() & {"model", "models", "artifact", "checkpoint"} else MODEL | case


def effect_of(rendered: Rendered) -> dict[str, Any]:
    """What is not as with a model alone, by its path in the resources; None: there is nothing any more."""
    before, after = of_model_alone(), dict(leaves(rendered))
    paths = sorted(path for path in before | after if before.get(path) != after.get(path))
    return {path: after.get(path) for path in paths}


@cache
def of_model_alone() -> dict[str, Any]:
    return dict(leaves(render(MODEL)))


def leaves(rendered: Rendered) -> Iterator[tuple[str, Any]]:
    """Each value of the resources and its path, in which an item of a list has its name, or else its number."""
    found = _leaves(rendered.resources | {"notes": rendered.notes}, "")
    return ((path, value) for path, value in found if not path.startswith(FILES))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict | list) or not value:
        yield path.removeprefix("/"), value
        return
    if isinstance(value, list):
        value = {str(one["name"] if isinstance(one, dict) and "name" in one else n): one for n, one in enumerate(value)}
    for name in value.keys() - OF_VERSION:
        yield from _leaves(value[name], f"{path}/{name}")


def main() -> None:
    effects = {"a model alone": of_model_alone()}
    effects |= {name: effect_of(render(values_of(case))) for name, case in CASES.items()}
    EFFECTS.write_text(json.dumps(effects, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
