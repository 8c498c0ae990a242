# make serve: install, export the bundled model, serve it.   make test: the whole suite.
# make check: lint, types, import rules, documents.   make images: the images of docker/Dockerfile.
# RUNTIME=cpu: ONNX Runtime without CUDA's kernels, 270 MB less, until RUNTIME=cuda.
PYTHON ?= python3
PORT := $(or $(BERT_PORT),8080)
BIN := .venv/bin
# without RUNTIME: that of the last install
ON_CPU := $(if $(filter cpu,$(or $(RUNTIME),$(if $(wildcard .venv/installed-cpu),cpu))),-cpu)
INSTALLED := .venv/installed$(ON_CPU)
DEV := .venv/dev$(ON_CPU)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NOT_INSTALLED = echo "make install: pip ended with an error, see above; it needs a network, or PIP_INDEX_URL set to an index that it reaches" >&2; exit 1

.DEFAULT_GOAL := help
.PHONY: help install dev export serve check check-rules test-proxies test test-start test-avx2 test-wheel test-ray test-lowest lock docs pages site images test-images release-check bench-engine bench-server bench-peers clean

help:
	@echo "make serve | test | check | check-rules | test-proxies | test-start | test-avx2 | test-wheel | test-ray | test-lowest | docs | pages | site | export | images | test-images | release-check | bench-engine | bench-server | bench-peers | lock | clean"

install: $(INSTALLED)
dev: $(DEV)

$(INSTALLED): requirements$(ON_CPU).lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@echo "installing packbert and its packages into .venv: some minutes without a cache"
	@$(PYTHON) -m venv $(if $(filter-out $(INSTALLED),$(wildcard .venv/installed*)),--clear) .venv  # the runtimes share a folder
	@$(PIP) --require-hashes -r requirements$(ON_CPU).lock || { $(NOT_INSTALLED); }
	@$(PIP) --no-deps --config-settings editable_mode=compat -e . || { $(NOT_INSTALLED); }
	@echo "installed: $(BIN)/packbert --help shows its commands"
	@touch $@

$(DEV): $(INSTALLED) requirements-dev$(ON_CPU).lock
	$(PIP) --require-hashes -r requirements-dev$(ON_CPU).lock
	@touch $@

export: artifacts/sample/cpu/manifest.json

artifacts/sample/cpu/manifest.json: $(INSTALLED) $(wildcard model_export/sample/*)
	@rm -rf artifacts/sample
	$(BIN)/packbert export model_export/sample artifacts/sample

# exported at its first start into artifacts/cache, after a look at the port
serve: $(INSTALLED)
	@echo
	@echo "When the line \"serving ...\" is there, open its address in a browser, or try it in another terminal (Ctrl-C stops it):"
	@echo "  curl localhost:$(PORT)/embed -d '{\"inputs\": \"my dog is hairy\", \"normalize\": true, \"dimensions\": 4}'"
	@echo "  curl localhost:$(PORT)/fill-mask -d '{\"inputs\": \"She was ill, so she went to see a [MASK].\", \"top_k\": 3}'"
	@echo "  curl localhost:$(PORT)/nsp -d '{\"inputs\": {\"text\": \"我喜欢学习中文。\", \"text_pair\": \"因为它很有趣。\"}}'"
	@echo
	@export BERT_PORT=$(PORT) BERT_CACHE=$(or $(BERT_CACHE),artifacts/cache); \
		exec $(BIN)/packbert serve $(or $(BERT_MODEL),model_export/sample)

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/python -m pytest tests/docs tests/test_layout.py

# the alerts and the dashboard against a real Prometheus and its promtool
check-rules: dev
	@command -v promtool >/dev/null && command -v prometheus >/dev/null || { echo "promtool is missing: apt-get install prometheus, or https://prometheus.io/download"; exit 1; }
	promtool check rules deploy/prometheus/rules.yml
	promtool check config deploy/prometheus/prometheus.yml
	promtool test rules tests/deploy/rules_test.yml
	$(BIN)/python -m pytest tests/deploy/with_prometheus.py

# restarts of two replicas under load, behind nginx and HAProxy as docs/operate/tls.md configures them
test-proxies: dev
	@command -v nginx >/dev/null && command -v haproxy >/dev/null || { echo "nginx or haproxy is missing: apt-get install nginx haproxy"; exit 1; }
	$(BIN)/python -m pytest tests/deploy/with_proxies.py

# Each worker runs whole files, and starts each server that they share once. A worker that crashes ends the run.
ON_ALL_CORES = -n auto --maxprocesses 8 --dist loadfile --max-worker-restart 0

test: dev
	$(BIN)/python -m pytest $(ON_ALL_CORES)

# README and the page `start` from an empty folder: every command as printed, every answer as printed
test-start: dev
	$(BIN)/python -m tests.docs.stranger

# int8's products and vectors on an emulated processor with AVX2 only, which is slow (/proc/cpuinfo too is emulated)
test-avx2: dev
	@command -v qemu-x86_64 >/dev/null || { echo "qemu-x86_64 is missing: apt-get install qemu-user"; exit 1; }
	mkdir -p build/avx2/proc
	echo "flags : avx avx2 fma" > build/avx2/proc/cpuinfo
	PYTHONPATH=$(CURDIR):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
		qemu-x86_64 -L build/avx2 -cpu Haswell $$(readlink -f $(BIN)/python) -m pytest -o cache_dir=build/avx2/cache \
		tests/export/graph/test_linear.py "tests/service/engine/test_int8.py::test_the_service_is_as_exact_as_the_export[bert]"

# the wheel in an environment of its own, beside packages named `service` and `model_export`
test-wheel: dev
	$(BIN)/python -m pytest tests/package/with_wheel.py

# Ray Serve and Ray Data on a local cluster of several nodes (installs ray, beside the environment of the other tests)
test-ray: dev
	$(PYTHON) -m venv build/ray
	build/ray/bin/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e .[dev,ray]
	build/ray/bin/python -m pytest -W ignore tests/deploy/with_ray.py  # Ray warns of its own code

# the whole suite with the lowest versions that pyproject.toml allows (TESTS=tests/service/http for a part of it)
test-lowest: dev
	$(PYTHON) -m venv build/lowest
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --python build/lowest/bin/python --no-annotate --no-header \
		--no-emit-index-url --extra dev pyproject.toml -o build/lowest/requirements.txt
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check -r build/lowest/requirements.txt
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --config-settings editable_mode=compat -e .
	build/lowest/bin/python -m pytest $(ON_ALL_CORES) $(TESTS)

# what the pages take from code, results and answers, then the site
docs: pages site

# settings, metrics, commands, routes, families, the answers of the examples, pictures, benchmark tables
pages: dev export
	$(BIN)/python -m docs.tools
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m tests.page.picture artifacts/sample

# docs/ as a site that contacts no host, in build/site (MkDocs and what it needs take 190 MB)
site: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m docs.tools.built build/site

.venv/docs: $(DEV) pyproject.toml
	$(PIP) --config-settings editable_mode=compat -e .[docs]
	@touch $@

# tokens/s of engines alone: ours, its ceiling, ONNX Runtime, torch, OpenVINO, CTranslate2 (in an environment of their own)
bench-engine: dev
	$(BIN)/python -m benchmarks.engine.prepare
	$(BIN)/python -m benchmarks.engine

# the whole server and the engine alone: closed loop, Poisson, MLPerf's LoadGen, cost of a request
bench-server: dev
	$(PIP) -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.server fp32
	$(BIN)/python -m benchmarks.server int8
	$(BIN)/python -m benchmarks.server.overhead fp32
	$(BIN)/python -m benchmarks.server.loadgen int8
	$(BIN)/python -m benchmarks.harness.charts

# the whole server and other servers with the same weights (each in its own environment under build/peers)
bench-peers: dev
	$(PIP) -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.harness.charts

# Images packbert (export and serve), packbert-serve and packbert-export. RUNTIME=cuda: for a GPU; packbert-export needs none. RUNTIME=openvino: with bf16.
RUNTIME ?= cpu
IMAGE_VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BUILD = docker build --file docker/Dockerfile --build-arg RUNTIME=$(RUNTIME) --build-arg VERSION=$(IMAGE_VERSION) \
	--build-arg REVISION=$(shell git rev-parse HEAD) $(if $(BUILD_NETWORK),--network=$(BUILD_NETWORK))

images:
	$(if $(filter-out cuda,$(RUNTIME)),$(BUILD) --target export --tag packbert-export:$(RUNTIME) .)
	$(BUILD) --target serve --tag packbert-serve:$(RUNTIME) .
	$(BUILD) --target service --tag packbert:$(RUNTIME) .

# builds the images and runs them with compose, about 5 minutes; needs Docker with Compose (docker/engine.sh start: one
# for a machine that has none, then PATH=/var/tmp/bert-engine/bin:$$PATH BUILD_NETWORK=host)
test-images: dev images
	$(BIN)/python -m pytest tests/deploy/with_images.py

# all that a tag publishes, short of publishing it: wheel, source archive, chart, and images in a container engine
release-check: check test-wheel test-images
	$(BIN)/python .ci/release.py https://example.org/packbert registry.example.org/packbert

# The versions in the lock files stay unless pyproject.toml asks for others; `make lock UPGRADE=--upgrade` takes the newest.
# The development lock holds every extra but cuda, docs and train; the others take their versions from it.
COMPILE = $(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-header --no-emit-index-url
UNIVERSAL = --universal --python-version 3.11
FOR_IMAGES = $(COMPILE) --universal --python-version 3.12 --constraint requirements-dev.lock
LOCKS = docker/locks

lock: dev
	$(COMPILE) $(UNIVERSAL) $(UPGRADE) --extra dev pyproject.toml -o requirements-dev.lock
	$(COMPILE) $(UNIVERSAL) --constraint requirements-dev.lock --extra service --extra otel --extra export --extra client pyproject.toml \
		-o requirements.lock
	$(COMPILE) $(UNIVERSAL) --constraint requirements-dev.lock --override $(LOCKS)/runtime-cpu.txt \
		--extra service --extra otel --extra export --extra client pyproject.toml -o requirements-cpu.lock
	$(COMPILE) $(UNIVERSAL) --constraint requirements-dev.lock --override $(LOCKS)/runtime-cpu.txt --extra dev pyproject.toml \
		-o requirements-dev-cpu.lock
	$(FOR_IMAGES) $(UPGRADE) $(LOCKS)/build.in -o $(LOCKS)/build.lock
	$(FOR_IMAGES) --override $(LOCKS)/unused.txt --override $(LOCKS)/runtime-cpu.txt pyproject.toml \
		-o $(LOCKS)/runtime-cpu.lock
	$(FOR_IMAGES) --extra openvino --override $(LOCKS)/unused.txt --override $(LOCKS)/runtime-cpu.txt pyproject.toml \
		-o $(LOCKS)/runtime-openvino.lock
	$(COMPILE) $(UPGRADE) --python-platform x86_64-manylinux_2_28 --python-version 3.12 --constraint requirements-dev.lock \
		--extra cuda --override $(LOCKS)/unused.txt --override $(LOCKS)/no-cufft.txt pyproject.toml \
		-o $(LOCKS)/runtime-cuda.lock
	$(FOR_IMAGES) --extra service --extra otel --override $(LOCKS)/unused.txt --override $(LOCKS)/no-runtime.txt \
		pyproject.toml -o $(LOCKS)/service.lock
	$(FOR_IMAGES) --extra export --override $(LOCKS)/no-runtime.txt pyproject.toml -o $(LOCKS)/export.lock

clean:
	rm -rf .venv artifacts build/lowest build/site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
