#!/usr/bin/env bash
# On a machine with an NVIDIA GPU (CUDA 13 driver) and Python 3.12 or newer, which the locks of the images are for (the
# package itself takes 3.11): installs what it needs into .venv-gpu, checks parity first, then prints and writes the tables.
# `--device cpu` rehearses all parts on a tiny model, without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import sys; sys.exit("Python 3.12 or newer is needed for docker/locks, this is " + sys.version.split()[0] + ": set PYTHON=..." if sys.version_info < (3, 12) else 0)'
if [ ! .venv-gpu/ready -nt docker/locks/runtime-cuda.lock ]; then
    "$PYTHON" -m venv .venv-gpu
    for lock in runtime-cuda service export; do  # each holds all that it needs, but the runtime has a file of its own
        .venv-gpu/bin/python -m pip install --quiet --no-deps --require-hashes -r docker/locks/$lock.lock
    done
    .venv-gpu/bin/python -m pip install --quiet --no-deps -e .
    touch .venv-gpu/ready
fi
.venv-gpu/bin/python -m benchmarks.gpu "$@"
