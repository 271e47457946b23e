# make serve   set up, then serve the default model on http://127.0.0.1:8000
# make test    set up, then run all tests
# make check   set up, then lint, types, import rules
# make bench   set up, then run the benchmarks and print the table of goals (scripts/bench says more)
# make clean   remove what the above made (the model's cache stays)

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*)

.PHONY: serve test check bench clean
.DELETE_ON_ERROR:

serve: $(VENV)/.serve
	@$(BIN)/orcaserve serve $(ARGS)

test: $(VENV)/.dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test $(ARGS)

check: $(VENV)/.dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

bench: $(VENV)/.bench
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/bench $(ARGS)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "orcaserve needs Python 3.11 or newer; set PYTHON=...")'
	@echo "setting up: a virtual environment in $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --upgrade pip

# One recipe, two depths: what serving needs, and what checks and tests need on top.
$(VENV)/.serve: $(VENV)/bin/python $(SOURCES)
	@echo "setting up: installing orcaserve and building its kernels (a few minutes the first time)" >&2
	@CMAKE_BUILD_PARALLEL_LEVEL=2 $(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	@echo "setting up: installing the tools for checks and tests" >&2
	@CMAKE_BUILD_PARALLEL_LEVEL=2 $(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "setting up: installing the tools for plots" >&2
	@CMAKE_BUILD_PARALLEL_LEVEL=2 $(BIN)/python -m pip install -q -e '.[dev,bench]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find orcaserve -name '*.so' -delete
