# Every target first makes the environment it needs in .venv, unless that is up to date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# The range of supported torch versions. Tests compare it with pyproject.toml and CONTRIBUTING.md.
OLDEST_TORCH := 2.6.0
NEWEST_TORCH := 2.15.0

.PHONY: setup demo test test-all test-torch sanitize fuzz torture lint style types format support bench pages gpu-check docs docs-serve wheel clean

setup: $(READY)

# The sources of the CPU kernels, which the installation compiles.
KERNELS := setup.py $(wildcard src/whitenorm/ops/native/*.cpp src/whitenorm/ops/native/*.h)

$(READY): pyproject.toml lab/pyproject.toml constraints.txt tools/torchvision_on_cpu.py $(KERNELS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "developing whitenorm needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable ./lab
	$(BIN)/python tools/torchvision_on_cpu.py
	touch $(READY)

demo: $(READY)
	$(BIN)/whitenorm-lab demo

lint: style types

types: $(READY)
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One OpenMP thread per worker, because two workers of two threads stall each other on two cores. Types are checked by a
# test, so that the other worker goes on meanwhile.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --quiet

# Every room, with a sample of the slow families: at most five minutes on two idle cores.
test: style
	$(PYTEST) -m "not slow"

# These, and the tests marked slow: all kernels in the interpreter, all experiments, the site in a browser, both wheels.
test-all: test sanitize
	$(PYTEST) -m slow --durations 15

# The tests of the C++ kernels, with GCC's checks of every access to memory and of undefined behavior.
sanitize: $(READY)
	$(BIN)/python -m tools.sanitize $(ARGS)

# Kill training runs at random and damage their files; they must resume or say why not: ARGS="--kills 100 --seed 1"
torture: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.tests.helpers.torture $(ARGS)

# The library's own tests, without the lab, on another version of torch: make test-torch TORCH=oldest, newest or 2.9.1
TORCH ?= newest
TORCH_VERSION := $(patsubst newest,$(NEWEST_TORCH),$(patsubst oldest,$(OLDEST_TORCH),$(TORCH)))
TORCH_VENV := .venv-torch-$(TORCH_VERSION)
test-torch:
	test -x $(TORCH_VENV)/bin/python || $(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION) numpy pytest pytest-xdist hypothesis
	PYTHONPATH=src OMP_NUM_THREADS=1 $(TORCH_VENV)/bin/python -m pytest --numprocesses 2 --quiet tests src

# Compare random layers on random inputs with float64, starting from a seed: make fuzz MINUTES=10 SEED=0
MINUTES ?= 1
SEED ?= 0
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.helpers.fuzz --minutes $(MINUTES) --seed $(SEED)

# Write the table of docs/compatibility.md by running its checks.
support: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.helpers.support

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# Write the figures of stored results into README and docs; needed before every commit of a result.
pages: $(READY)
	$(BIN)/whitenorm-lab report --results lab/results --index --readme README.md --page docs/claims.md --guides docs/*.md --out build/report
	$(BIN)/python -m benchmarks.pages
	$(BIN)/python tools/docs/pictures.py

# Compile the Triton kernels for GPUs that need not be present: make gpu-check ARGS=--write
gpu-check: $(READY)
	$(BIN)/python -m tools.gpu_check $(ARGS)

docs: $(READY)
	$(BIN)/mkdocs build --strict

docs-serve: $(READY)
	$(BIN)/mkdocs serve

# Build and check both wheels, and use them in an environment of their own from a folder that is not the checkout: the
# library alone, with its inspect extra, and with the lab.
WHEEL_PIP := .venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
wheel:
	test -x .venv-build/bin/python || $(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build twine
	rm -rf build dist .venv-wheel
	.venv-build/bin/python -m build
	.venv-build/bin/python -m build --outdir dist lab
	.venv-build/bin/twine check --strict dist/*
	$(PYTHON) -m venv .venv-wheel
	$(WHEEL_PIP) torch numpy
	$(WHEEL_PIP) dist/whitenorm-*.whl
	.venv-wheel/bin/python tools/smoke.py
	$(WHEEL_PIP) "$$(echo dist/whitenorm-*.whl)[inspect]"
	.venv-wheel/bin/python tools/smoke.py inspect
	$(WHEEL_PIP) dist/*.whl
	.venv-wheel/bin/python tools/smoke.py inspect lab

clean:
	rm -rf .venv .venv-torch-* .venv-build .venv-wheel .mypy_cache .pytest_cache .ruff_cache .hypothesis whitenorm-demo build dist src/*.egg-info lab/src/*.egg-info src/whitenorm/ops/native/*.so
