# Every target works in a bare clone: the first one creates .venv and installs into it, the next ones start at once.
#   make demo              train on CartPole through a Ray-hosted buffer until it is solved
#   make test ARGS="-k x"  the test suite (ARGS go to pytest, to the demo or to a benchmark)
#   make check             lint, types and tests
PYTHON ?= python3
ARGS ?=
# Processes that share the tests, a file at a time; each starts its own Ray.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Compiled kernels and font lists are kept inside the clone: HOME may be empty or not writable.
export NUMBA_CACHE_DIR ?= $(CURDIR)/.cache/numba
export MPLCONFIGDIR ?= $(CURDIR)/.cache/matplotlib
export RAY_USAGE_STATS_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format types check bench clean

help:
	@echo "make demo | test | lint | format | types | check | bench | clean   (ARGS=... is passed through)"

install: $(STAMP)

# The stamp is written last, so an installation that was interrupted is taken up again.
$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (once, takes a few minutes)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("Python 3.10 or newer is needed, PYTHON=%s is %d.%d" % (sys.executable, v[0], v[1]))'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,demo,hdf5,video]"
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m deploy demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

bench: $(STAMP)
	$(BIN)/python -m benchmarks.local_ops $(ARGS)
	$(BIN)/python -m benchmarks.remote_ops $(ARGS)

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
