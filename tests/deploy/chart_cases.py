"""Every value of the Helm chart, changed from its default, and what it changes in the resources.

Knows the chart's values and Kubernetes' fields, not how the chart is rendered.
"""

from dataclasses import dataclass
from typing import Any

MODEL = {"model": "org/model"}
MODELS: dict[str, Any] = {"models": [{"name": "zh", "model": "org/zh"}, {"name": "en", "model": "org/en@main"}]}
GRACE = "terminationGracePeriodSeconds"
PEER = [{"podSelector": {"matchLabels": {"app": "gateway"}}}]
SCRAPER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
SERIES = '{namespace="prod",service="demo-packbert"}'


@dataclass(frozen=True)
class Case:
    """`expected` has what is at a path such as `Service/spec/type`, `pod/volumes` or `env/BERT_MODEL`; None: none."""

    changed: dict[str, Any]  # from the defaults; with a model, if it says none
    expected: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        has_model = self.changed.keys() & {"model", "models", "artifact", "checkpoint"}
        return self.changed if has_model else MODEL | self.changed


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
CASES = {
    "model": Case(
        {"precision": "int8"},
        {
            "env/BERT_MODEL": "org/model",
            "env/BERT_PRECISION": "int8",
            "container/image": "packbert:cpu",
            "pod/initContainers": None,
            "pod/volumes/1": {"name": "cache", "emptyDir": {"sizeLimit": "20Gi"}},
            "PersistentVolumeClaim": None,
        },
    ),
    "cache of the chart's claim": Case(
        {"cache": {"size": "50Gi", "claim": CLAIM | {"accessMode": "ReadWriteMany"}}, "replicas": 3},
        {
            "PersistentVolumeClaim/spec/accessModes": ["ReadWriteMany"],
            "PersistentVolumeClaim/spec/storageClassName": "fast",
            "PersistentVolumeClaim/spec/resources/requests/storage": "50Gi",
            "pod/volumes/1/persistentVolumeClaim/claimName": "demo-packbert-cache",
            "Deployment/spec/strategy/type": "RollingUpdate",
            "Deployment/spec/replicas": 3,
        },
    ),
    "cache of another claim, which one node can mount": Case(
        {"cache": {"claim": {"create": True, "name": "mine"}}},
        {
            "PersistentVolumeClaim": None,
            "pod/volumes/1/persistentVolumeClaim/claimName": "mine",
            "Deployment/spec/strategy": {"type": "Recreate"},
        },
    ),
    "export in an initContainer": Case(
        {"precision": "int8", "export": {"initContainer": True, "resources": {"limits": {"memory": "9Gi"}}}},
        {
            "pod/initContainers/0/image": "packbert-export:cpu",
            "pod/initContainers/0/args/0": "org/model",
            "pod/initContainers/0/args/2": "int8",
            "pod/initContainers/0/resources/limits/memory": "9Gi",
            "container/image": "packbert-serve:cpu",
            "container/volumeMounts/1/readOnly": True,
            "env/BERT_PRECISION": None,
        },
    ),
    "artifact": Case(
        {"artifact": {"claim": "models", "path": "bert/v2"}},
        {
            "env/BERT_MODEL": "/artifacts/bert/v2",
            "container/image": "packbert-serve:cpu",
            "pod/volumes/1/persistentVolumeClaim": {"claimName": "models", "readOnly": True},
            "container/volumeMounts/1": {"name": "artifact", "mountPath": "/artifacts", "readOnly": True},
        },
    ),
    "checkpoint of a claim": Case(
        {"checkpoint": {"claim": "models", "path": "bert/v2"}},
        {
            "env/BERT_MODEL": "/checkpoint/bert/v2",
            "container/image": "packbert:cpu",
            "container/volumeMounts/2": {"name": "checkpoint", "mountPath": "/checkpoint", "readOnly": True},
            "pod/volumes/2/persistentVolumeClaim": {"claimName": "models", "readOnly": True},
            "pod/initContainers": None,
        },
    ),
    "models of the hub": Case(
        MODELS | {"precision": "int8", "podAnnotations": {"a": "b"}},
        {
            "env/BERT_MODELS": "/etc/packbert-models/models.yaml",
            "env/BERT_MODEL": None,
            "env/BERT_PRECISION": "int8",
            "ConfigMap/metadata/name": "demo-packbert-models",
            "container/image": "packbert:cpu",
            "container/volumeMounts/2": {"name": "models", "mountPath": "/etc/packbert-models", "readOnly": True},
            "pod/volumes/1/name": "cache",
            "pod/volumes/2": {"name": "models", "configMap": {"name": "demo-packbert-models"}},
        },
    ),
    "models of claims": Case(
        {
            "models": [{"name": "zh", "model": "/artifacts/zh"}, {"name": "en", "model": "/checkpoint/en"}],
            "artifact": {"claim": "artifacts"},
            "checkpoint": {"claim": "checkpoints"},
            "networkPolicy": {"enabled": True},
        },
        {
            "container/image": "packbert:cpu",
            "pod/volumes/1/persistentVolumeClaim": {"claimName": "artifacts", "readOnly": True},
            "pod/volumes/3/persistentVolumeClaim": {"claimName": "checkpoints", "readOnly": True},
            "NetworkPolicy/spec/egress/1": None,
        },
    ),
    "models that are artifacts": Case(
        {"models": [{"name": "zh", "model": "/artifacts/zh"}], "artifact": {"claim": "artifacts"}},
        {"container/image": "packbert-serve:cpu", "pod/volumes/2/name": "models", "env/BERT_PRECISION": None},
    ),
    "checkpoint of an image": Case(
        {"checkpoint": {"uri": "oci://registry.example.com/bert:2"}},
        {
            "env/BERT_MODEL": "/checkpoint/model",
            "pod/volumes/2/image": {"reference": "registry.example.com/bert:2", "pullPolicy": "IfNotPresent"},
            "pod/initContainers": None,
        },
    ),
    "checkpoint of a bucket": Case(
        {"checkpoint": {"uri": FETCHED, "fetchImage": "fetch:1", "fetchSecret": "s3"}, "cache": {"size": "9Gi"}},
        {
            "env/BERT_MODEL": "/checkpoint",
            "pod/initContainers/0/image": "fetch:1",
            "pod/initContainers/0/args": [FETCHED, "/checkpoint"],
            "pod/initContainers/0/envFrom/0/secretRef/name": "s3",
            "pod/volumes/2": {"name": "checkpoint", "emptyDir": {"sizeLimit": "9Gi"}},
        },
    ),
    "bf16": Case({"precision": "bf16"}, {"env/BERT_PRECISION": "bf16", "container/image": "packbert:openvino"}),
    "bf16, after an export": Case(
        EXPORT | {"precision": "bf16"},
        {"container/image": "packbert-serve:openvino", "pod/initContainers/0/image": "packbert-export:openvino"},
    ),
    "image by digest": Case(
        {"image": {"service": "registry.example.com/packbert@sha256:" + "0" * 64}},
        {"container/image": "registry.example.com/packbert@sha256:" + "0" * 64},
    ),
    "strategy and probes": Case(
        {
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "probes": {
                "startup": {"failureThreshold": 7},
                "liveness": {"timeoutSeconds": 9},
                "readiness": {"periodSeconds": 1},
            },
        },
        {
            "Deployment/spec/strategy/rollingUpdate": {"maxUnavailable": 1},
            "container/startupProbe": {
                "failureThreshold": 7,
                "httpGet": {"path": "/health", "port": "http"},
                "periodSeconds": 5,
                "timeoutSeconds": 5,
            },
            "container/livenessProbe": {
                "httpGet": {"path": "/health", "port": "http"},
                "periodSeconds": 10,
                "timeoutSeconds": 9,
            },
            "container/readinessProbe": {
                "httpGet": {"path": "/ready", "port": "http"},
                "periodSeconds": 1,
                "timeoutSeconds": 5,
            },
        },
    ),
    "Ingress": Case(
        {
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "annotations": {"a": "b"},
                "hosts": ["bert.example.com"],
                "path": "/bert",
                "tls": CERTIFICATE,
            }
        },
        {
            "Ingress/metadata/annotations/a": "b",
            "Ingress/metadata/annotations/nginx.ingress.kubernetes.io~rewrite-target": "/$2",
            "Ingress/metadata/annotations/nginx.ingress.kubernetes.io~use-regex": "true",
            "Ingress/spec/ingressClassName": "nginx",
            "Ingress/spec/tls": CERTIFICATE,
            "Ingress/spec/rules/0/host": "bert.example.com",
            "Ingress/spec/rules/0/http/paths/0": {
                "path": "/bert(/|$)(.*)",
                "pathType": "ImplementationSpecific",
                "backend": {"service": {"name": "demo-packbert", "port": {"name": "http"}}},
            },
        },
    ),
    "Ingress that another controller rewrites": Case(
        {"ingress": {"enabled": True, "className": "traefik", "path": "/bert", "annotations": {"a": "b"}}},
        {
            "Ingress/metadata/annotations": {"a": "b"},
            "Ingress/spec/rules/0/http/paths/0/path": "/bert",
            "Ingress/spec/rules/0/http/paths/0/pathType": "Prefix",
        },
    ),
    "Ingress of all hosts": Case(
        {"ingress": {"enabled": True}}, {"Ingress/spec/rules/0/host": None, "Ingress/spec/rules/1": None}
    ),
    "HTTPRoute": Case(
        {
            "httpRoute": {
                "enabled": True,
                "annotations": {"a": "b"},
                "parentRefs": GATEWAY,
                "hostnames": ["bert.example.com"],
                "path": "/bert",
            }
        },
        {
            "HTTPRoute/metadata/annotations": {"a": "b"},
            "HTTPRoute/spec/parentRefs": GATEWAY,
            "HTTPRoute/spec/hostnames": ["bert.example.com"],
            "HTTPRoute/spec/rules/0/matches/0/path": {"type": "PathPrefix", "value": "/bert"},
            "HTTPRoute/spec/rules/0/filters/0/urlRewrite/path": {
                "type": "ReplacePrefixMatch",
                "replacePrefixMatch": "/",
            },
            "HTTPRoute/spec/rules/0/backendRefs": [{"name": "demo-packbert", "port": 8080}],
        },
    ),
    "HTTPRoute of all paths": Case(
        {"httpRoute": {"enabled": True, "parentRefs": GATEWAY}}, {"HTTPRoute/spec/rules/0/filters": None}
    ),
    "dashboard": Case(
        {"dashboard": {"enabled": True, "labels": {"team": "search"}, "annotations": {"folder": "models"}}},
        {
            "ConfigMap/metadata/name": "demo-packbert-dashboard",
            "ConfigMap/metadata/labels/grafana_dashboard": "1",
            "ConfigMap/metadata/labels/team": "search",
            "ConfigMap/metadata/annotations": {"folder": "models"},
        },
    ),
    "account of the release": Case(
        {"serviceAccount": {"create": True, "annotations": {"role": "reader"}}},
        {
            "ServiceAccount/metadata/name": "demo-packbert",
            "ServiceAccount/metadata/annotations": {"role": "reader"},
            "pod/serviceAccountName": "demo-packbert",
        },
    ),
    "more of the pod": Case(
        {
            "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/own"}],
            "initContainers": [{"name": "wait", "image": "wait:1"}],
            "extraContainers": [LOG_SHIPPER],
        },
        {
            "pod/volumes/2": {"name": "ca", "configMap": {"name": "ca"}},
            "container/volumeMounts/2/mountPath": "/etc/ssl/own",
            "pod/initContainers": [{"name": "wait", "image": "wait:1"}],
            "pod/containers/1": LOG_SHIPPER,
        },
    ),
    "images of a registry": Case(
        EXPORT | {"image": NEW_REGISTRY},
        {
            "container/image": "registry.example.com/team/packbert-serve:cpu",
            "container/imagePullPolicy": "Always",
            "pod/initContainers/0/image": "registry.example.com/team/packbert-export:cpu",
            "pod/initContainers/0/imagePullPolicy": "Always",
            "pod/imagePullSecrets": [{"name": "login"}],
        },
    ),
    "images of a release": Case(
        EXPORT | {"image": {"version": "1.2.3"}, "gpu": {"count": 1}},
        {"container/image": "packbert-serve:1.2.3-cuda", "pod/initContainers/0/image": "packbert-export:1.2.3-cpu"},
    ),
    "the service's image": Case({"image": {"service": "mine:1"}}, {"container/image": "mine:1"}),
    "the other images": Case(
        EXPORT | {"image": {"serve": "mine:2", "export": "mine:3"}},
        {"container/image": "mine:2", "pod/initContainers/0/image": "mine:3"},
    ),
    "settings": Case(
        {"settings": {"BERT_MAX_BODY_BYTES": 8388608, "BERT_TRUNCATE": True, "BERT_MAX_WAIT_SECONDS": 0.5}},
        {"env/BERT_MAX_BODY_BYTES": "8388608", "env/BERT_TRUNCATE": "true", "env/BERT_MAX_WAIT_SECONDS": "0.5"},
    ),
    "workers": Case({"workers": 2}, {"env/BERT_WORKERS": "2", "env/BERT_CACHE": None, f"pod/{GRACE}": 45}),
    "workers, after an export": Case(EXPORT | {"workers": 2}, {"env/BERT_CACHE": "/tmp/packbert"}),
    "secrets": Case(
        {
            "apiKeys": {"secret": "keys", "key": "all"},
            "adminKey": {"secret": "admin", "key": "swap"},
            "hubToken": {"secret": "hub", "key": "read"},
        },
        {
            "env/BERT_ADMIN_KEY": {"secretKeyRef": {"name": "admin", "key": "swap"}},
            "env/BERT_API_KEY_FILE": "/etc/packbert/keys",
            "container/volumeMounts/2/mountPath": "/etc/packbert",
            "pod/volumes/2/secret": {"secretName": "keys", "items": [{"key": "all", "path": "keys"}]},
            "env/HF_TOKEN": {"secretKeyRef": {"name": "hub", "key": "read"}},
        },
    ),
    "token and variables of an export": Case(
        EXPORT | {"hubToken": {"secret": "hub"}, "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://p:1"}]},
        {
            "pod/initContainers/0/env/0/valueFrom/secretKeyRef/name": "hub",
            "pod/initContainers/0/env/1/value": "http://p:1",
            "env/HF_TOKEN": None,
            "env/HTTPS_PROXY": "http://p:1",
        },
    ),
    "no autoscaling": Case({}, {"HorizontalPodAutoscaler": None, "ScaledObject": None, "Deployment/spec/replicas": 1}),
    "HPA": Case(
        scaled("hpa", minReplicas=2, maxReplicas=9, busyRatio=0.6, waitSeconds=2, scaleDownSeconds=60),
        {
            "Deployment/spec/replicas": None,
            "HorizontalPodAutoscaler/spec/scaleTargetRef/name": "demo-packbert",
            "HorizontalPodAutoscaler/spec/minReplicas": 2,
            "HorizontalPodAutoscaler/spec/maxReplicas": 9,
            "HorizontalPodAutoscaler/spec/metrics/0/pods/metric/name": "bert_busy_ratio",
            "HorizontalPodAutoscaler/spec/metrics/0/pods/target/averageValue": "0.6",
            "HorizontalPodAutoscaler/spec/metrics/1/pods/metric/name": "bert_wait_seconds_estimated",
            "HorizontalPodAutoscaler/spec/metrics/1/pods/target/averageValue": "2",
            "HorizontalPodAutoscaler/spec/behavior/scaleDown/stabilizationWindowSeconds": 60,
        },
    ),
    "KEDA": Case(
        KEDA,
        {
            "Deployment/spec/replicas": None,
            "ScaledObject/spec/scaleTargetRef/name": "demo-packbert",
            "ScaledObject/spec/minReplicaCount": 2,
            "ScaledObject/spec/maxReplicaCount": 9,
            "ScaledObject/spec/fallback/replicas": 2,
            "ScaledObject/spec/triggers/0/metadata/serverAddress": "http://prometheus.example.com",
            "ScaledObject/spec/triggers/0/metadata/threshold": "0.6",
            "ScaledObject/spec/triggers/0/metadata/authModes": "bearer",
            "ScaledObject/spec/triggers/0/authenticationRef": {"name": "prometheus"},
            "ScaledObject/spec/triggers/0/metadata/query": (
                f"sum(bert_busy_ratio{SERIES} + bert_wait_seconds_estimated{SERIES} / 2)"
            ),
            "ScaledObject/spec/advanced/horizontalPodAutoscalerConfig/behavior/scaleDown": {
                "stabilizationWindowSeconds": 60
            },
        },
    ),
    "times": Case(
        {"startupSeconds": 61, "lingerSeconds": 1, "drainSeconds": 2, "preStopSeconds": 4},
        {
            "container/startupProbe/failureThreshold": 13,
            "Deployment/spec/progressDeadlineSeconds": 661,
            "env/BERT_LINGER_SECONDS": "1",
            "env/BERT_DRAIN_SECONDS": "2",
            "container/lifecycle": {"preStop": {"sleep": {"seconds": 4}}},
            f"pod/{GRACE}": 17,
        },
    ),
    "Service": Case(
        {"service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}},
        {
            "Service/spec/type": "LoadBalancer",
            "Service/spec/ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            "Service/metadata/annotations": {"a": "b"},
        },
    ),
    "admin port": Case(
        {"adminPort": 9000, "serviceMonitor": {"enabled": True}},
        {
            "env/BERT_ADMIN_PORT": "9000",
            "container/ports/1": {"name": "admin", "containerPort": 9000},
            "ServiceMonitor/spec/endpoints/0/targetPort": "admin",
            "Service/spec/ports/1": None,
        },
    ),
    "GPU": Case(
        {"gpu": {"count": 1, "resource": "nvidia.com/mig-1g.10gb", "runtimeClassName": "nvidia"}},
        {
            "container/resources/limits": {"memory": "4Gi", "nvidia.com/mig-1g.10gb": 1},
            "container/image": "packbert:cuda",
            "env/BERT_DEVICE": "cuda",
            "pod/runtimeClassName": "nvidia",
        },
    ),
    "GPU, after an export": Case(
        EXPORT | {"gpu": {"count": 1}},
        {"pod/initContainers/0/args/3": "cuda", "container/image": "packbert-serve:cuda"},
    ),
    "resources": Case(
        {"resources": {"requests": {"cpu": "4", "memory": "6Gi"}, "limits": {"memory": "6Gi"}}},
        {
            "container/resources": {"requests": {"cpu": "4", "memory": "6Gi"}, "limits": {"memory": "6Gi"}},
            "env/BERT_THREADS": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1"}},
        },
    ),
    "the cores of each worker": Case(
        {"workers": 2, "resources": {"requests": {"cpu": "4500m"}}}, {"env/BERT_THREADS": "3"}
    ),
    "a limit of cores, which the service reads": Case(
        {"resources": {"limits": {"cpu": "4", "memory": "6Gi"}}}, {"env/BERT_THREADS": None}
    ),
    "threads": Case({"settings": {"BERT_THREADS": 3}}, {"env/BERT_THREADS": "3"}),
    "disruptions": Case(
        {"podDisruptionBudget": {"maxUnavailable": "25%"}}, {"PodDisruptionBudget/spec/maxUnavailable": "25%"}
    ),
    "any disruption": Case({"podDisruptionBudget": {"enabled": False}}, {"PodDisruptionBudget": None}),
    "no monitoring": Case({}, {"ServiceMonitor": None, "PrometheusRule": None, "NetworkPolicy": None}),
    "monitoring": Case(
        {
            "serviceMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "x"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "y"}},
        },
        {
            "ServiceMonitor/metadata/labels/release": "x",
            "ServiceMonitor/spec/endpoints/0": {"targetPort": "http", "path": "/metrics", "interval": "5s"},
            "PrometheusRule/metadata/labels/release": "y",
        },
    ),
    "network": Case(
        {"networkPolicy": {"enabled": True, "from": PEER, "metricsFrom": SCRAPER, "egress": [{"to": SCRAPER}]}}
        | {"adminPort": 9000},
        {
            "NetworkPolicy/spec/ingress": [
                {"ports": [{"port": "http"}], "from": PEER},
                {"ports": [{"port": "admin"}], "from": SCRAPER},
            ],
            "NetworkPolicy/spec/egress/1": {"ports": [{"port": 443}]},
            "NetworkPolicy/spec/egress/2": {"to": SCRAPER},
        },
    ),
    "network with metrics on the same port": Case(
        {"artifact": {"claim": "models"}, "networkPolicy": {"enabled": True, "from": PEER, "metricsFrom": SCRAPER}},
        {
            "NetworkPolicy/spec/ingress": [
                {"ports": [{"port": "http"}], "from": PEER},
                {"ports": [{"port": "http"}], "from": SCRAPER},
            ],
            "NetworkPolicy/spec/egress/1": None,
        },
    ),
    "network from all": Case(
        {"networkPolicy": {"enabled": True}}, {"NetworkPolicy/spec/ingress": [{"ports": [{"port": "http"}]}]}
    ),
    "pod": Case(
        {
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
        {
            "Deployment/metadata/name": "embeddings",
            "Service/metadata/name": "embeddings",
            "pod/serviceAccountName": "reader",
            "pod/priorityClassName": "high",
            "Deployment/spec/template/metadata/annotations": {"a": "b"},
            "Deployment/spec/template/metadata/labels/c": "d",
            "pod/nodeSelector": {"disk": "ssd"},
            "pod/tolerations": [{"key": "gpu", "operator": "Exists"}],
            "pod/affinity": {"nodeAffinity": {}},
            "pod/topologySpreadConstraints/0/maxSkew": 2,
            "pod/securityContext/fsGroup": 5,
        },
    ),
}
