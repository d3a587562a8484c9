# Every target makes the environment it needs in .venv; a second call does no work twice.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-torch fuzz torture lint format bench gpu-check clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt tools/torchvision_on_cpu.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "whitenorm needs Python 3.10 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[lab,dev]'
	$(BIN)/python tools/torchvision_on_cpu.py
	touch $(READY)

demo: $(READY)
	$(BIN)/whitenorm demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One OpenMP thread a worker: two workers of two threads stall each other on two cores.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --quiet

# Training runs killed at random, and damaged: ARGS="--kills 100 --seed 1".
torture: $(READY)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m torture $(ARGS)

# The library's own tests, without the lab, on another version of torch: make test-torch TORCH=2.6.0
TORCH ?= 2.15.0
test-torch:
	test -x .venv-torch-$(TORCH)/bin/python || $(PYTHON) -m venv .venv-torch-$(TORCH)
	.venv-torch-$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) numpy pytest pytest-xdist hypothesis
	PYTHONPATH=src OMP_NUM_THREADS=1 .venv-torch-$(TORCH)/bin/python -m pytest --numprocesses 2 --quiet

# Random layers on random inputs against float64, from a seed on: make fuzz MINUTES=10 SEED=0
MINUTES ?= 1
SEED ?= 0
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --minutes $(MINUTES) --seed $(SEED)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# The Triton kernels compiled for cards that need not be there: make gpu-check ARGS=--write
gpu-check: $(READY)
	$(BIN)/python -m tools.gpu_check $(ARGS)

clean:
	rm -rf .venv .venv-torch-* .mypy_cache .pytest_cache .ruff_cache .hypothesis whitenorm-demo build dist src/*.egg-info
