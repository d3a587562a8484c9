# Every target makes the environment it needs in .venv; a second call does no work twice.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test lint format bench torture clean

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

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis whitenorm-demo build dist src/*.egg-info
