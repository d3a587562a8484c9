# Every target makes the environment it needs in .venv; a second call does no work twice.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# The versions of torch that are supported. The oldest is pyproject.toml's lower bound; tests compare what others name.
OLDEST_TORCH := 2.6.0
NEWEST_TORCH := 2.15.0

.PHONY: setup demo test test-torch fuzz torture lint style format support bench pages gpu-check docs docs-serve wheel clean

setup: $(READY)

$(READY): pyproject.toml lab/pyproject.toml constraints.txt tools/torchvision_on_cpu.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "developing whitenorm needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable ./lab
	$(BIN)/python tools/torchvision_on_cpu.py
	touch $(READY)

demo: $(READY)
	$(BIN)/whitenorm-lab demo

lint: style
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One OpenMP thread a worker: two workers of two threads stall each other on two cores. Types are checked by a test, which
# one worker runs while the other goes on.
test: style
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --quiet

# Training runs killed at random, and damaged: ARGS="--kills 100 --seed 1".
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

# Random layers on random inputs against float64, from a seed on: make fuzz MINUTES=10 SEED=0
MINUTES ?= 1
SEED ?= 0
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.helpers.fuzz --minutes $(MINUTES) --seed $(SEED)

# The table of docs/compatibility.md, by the checks that prove it.
support: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.helpers.support

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# What README and docs say of stored results, written anew: before every commit of a result.
pages: $(READY)
	$(BIN)/whitenorm-lab report --results lab/results --readme README.md --page docs/claims.md --guides docs/*.md
	$(BIN)/python -m benchmarks.pages

# The Triton kernels compiled for cards that need not be there: make gpu-check ARGS=--write
gpu-check: $(READY)
	$(BIN)/python -m tools.gpu_check $(ARGS)

docs: $(READY)
	$(BIN)/mkdocs build --strict

docs-serve: $(READY)
	$(BIN)/mkdocs serve

# Built, checked, and used in an environment of its own from a folder that is not the checkout: first the wheel alone, then
# with each extra.
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
	.venv-wheel/bin/python tools/smoke.py inspect demo

clean:
	rm -rf .venv .venv-torch-* .venv-build .venv-wheel .mypy_cache .pytest_cache .ruff_cache .hypothesis whitenorm-demo build dist src/*.egg-info lab/src/*.egg-info
