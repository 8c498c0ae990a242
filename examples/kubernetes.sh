#!/usr/bin/env bash
# From nothing to an answer on a Kubernetes cluster of this machine. Needs make, Docker, kind, kubectl and Helm.
#   examples/kubernetes.sh            makes the cluster and asks it
#   kind delete cluster --name bert   removes all of it
set -euo pipefail
cd "$(dirname "$0")/.."

make images                                                # packbert, packbert-serve, packbert-export
kind create cluster --name bert
kind load docker-image packbert:cpu --name bert            # a real cluster pulls from a registry: image.registry

helm install bert deploy/helm/packbert --values examples/kubernetes.yaml
kubectl rollout status deployment --selector app.kubernetes.io/instance=bert --timeout 30m

service=$(kubectl get service --selector app.kubernetes.io/instance=bert --output name | head -1)
kubectl port-forward "$service" 8080:8080 > /dev/null &
trap 'kill $!' EXIT
curl --silent --retry 10 --retry-connrefused localhost:8080/fill-mask -d '{"inputs": "巴黎是[MASK]国的首都。", "top_k": 3}'
