#!/usr/bin/env bash
# On a machine with an NVIDIA GPU (CUDA 13 driver): installs what it needs into .venv-gpu, checks parity first, then prints and writes the tables.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
if [ ! -f .venv-gpu/ready ]; then
    "$PYTHON" -m venv .venv-gpu
    .venv-gpu/bin/python -m pip install --quiet --require-hashes -r requirements-cuda.lock
    .venv-gpu/bin/python -m pip install --quiet --no-deps -e .
    touch .venv-gpu/ready
fi
.venv-gpu/bin/python -m benchmarks.gpu "$@"
