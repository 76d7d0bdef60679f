# Everything a contributor runs. `make help` lists the targets; each works alone on a clean clone.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The interpreter that makes .venv; inside it nothing else is used.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Extra arguments: make test ARGS="tests/unit -k kernel"
ARGS ?=
DEMO_ARGS ?=

# Neither Ray nor litellm reports home from our runs.
export RAY_USAGE_STATS_ENABLED := 0
export LITELLM_LOCAL_MODEL_COST_MAP := True
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SCRIPTS := $(wildcard benchmarks/*.py examples/*.py)

.PHONY: help setup demo test test-full lint format bench field-cases lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)$$/\1\t\2/' | expand -t 14

setup: $(STAMP)  ## prepare .venv with everything pinned in constraints.txt
	@:

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,testing,encryption]'
	@touch $@

demo: setup  ## an agent works, is killed, comes back, waits for a human, finishes
	$(BIN)/phronomy demo $(DEMO_ARGS)

test: setup  ## the test suite in its everyday size
	$(BIN)/python tests/two_runs.py -m "not full" $(ARGS)

test-full: setup  ## every test, field cases at their full size
	$(BIN)/python tests/two_runs.py $(ARGS)

lint: setup  ## ruff, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy phronomy_ray tests/field_cases.py $(SCRIPTS)
	$(BIN)/lint-imports --no-logo

format: setup  ## format and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## every benchmark, quick; one JSON document each
	@for script in benchmarks/*.py; do \
	  case $$script in */_*) continue;; esac; \
	  test -e "$$script" || { echo "no benchmarks" >&2; exit 1; }; \
	  echo "== $$script" >&2; $(BIN)/python "$$script" --json --quick $(ARGS); \
	done

field-cases: setup  ## which reported faults of other runtimes are covered by which test
	$(BIN)/python tests/field_cases.py

lock: setup  ## write constraints.txt from what .venv holds now
	@{ head -2 constraints.txt; \
	   $(BIN)/python -m pip freeze --all | grep -viE '^(pip|phronomy[-_]ray)( @|==)|^-e |^#' | LC_ALL=C sort -f; } > constraints.tmp
	@mv constraints.tmp constraints.txt

clean:  ## remove everything that can be made again
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo-output
	find phronomy_ray tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
