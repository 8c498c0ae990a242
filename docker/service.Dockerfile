# The service on a machine with a GPU. Without a GPU the same image runs on the CPU; docker/cpu.yml builds an image
# without the CUDA libraries.
# Holds only the service, its dependencies and model_export/artifact, the part of the exporter that the service imports.
# The base image has only the driver's interface. The CUDA libraries of ONNX Runtime come as wheels (the nvidia-*
# packages of the lock file). Its CUDA provider is linked with cuBLAS, cuRAND and the CUDA runtime. cuDNN and cuFFT
# (1.2 GB) stay in the image until a run on a GPU has shown that no operator loads them.
ARG BASE=nvidia/cuda:13.0.0-base-ubuntu24.04
# hadolint ignore=DL3006
FROM ${BASE}

ARG LOCK=requirements-cuda.lock
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/venv/bin:$PATH

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv \
    && useradd --system --uid 10001 --no-create-home bert

WORKDIR /app
COPY ${LOCK} pyproject.toml setup.py README.md LICENSE ./
RUN pip install --no-cache-dir --require-hashes -r "$LOCK"
COPY bert_service bert_service
COPY model_export/__init__.py model_export/py.typed model_export/
COPY model_export/artifact model_export/artifact
COPY service service
RUN pip install --no-cache-dir --no-deps .

USER 10001
WORKDIR /
ENV BERT_HOST=0.0.0.0 BERT_PORT=8080 BERT_ARTIFACT=/artifact
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ[\"BERT_PORT\"]}/health', timeout=2)"]
CMD ["bert-service"]
