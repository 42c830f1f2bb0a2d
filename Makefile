# Every target sets up what it needs on first use: a virtual environment in .venv, and Java where it may.

SHELL := bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test deep torture fuzz audit lint format bench docs clean setup java wheel

help:            ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

demo: setup      ## five analytical views over a stream of orders, live; then checked against recompute
	@$(BIN)/vk demo

test: setup      ## all tests, by two workers (WORKERS=…), each with a JVM of its own
	$(PYTEST) tests/unit tests/contract tests/golden tests/property tests/integration tests/torture tests/docs -m "not deep" \
		--numprocesses $(WORKERS) --dist loadgroup $(ARGS)

deep: setup      ## the long tests: clusters, kills, consistency of every strategy, HBase's faults
	$(PYTEST) tests -m deep $(ARGS)

torture: setup   ## every fault many times, for about an hour; prints a table: fault, injected, checked, differences
	VK_PROFILE=deep $(PYTEST) tests/torture --timeout=3600 $(ARGS)

fuzz: setup      ## what comes in, led by coverage, a minute for each kind (SECONDS=…); installs atheris
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python tools/fuzz $(or $(SECONDS),60)

audit:           ## look the pinned packages up in the list of known vulnerabilities
	@PYTHON=$(PYTHON) tools/audit

lint: $(STAMP)   ## ruff, mypy --strict, and the layers of the source tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff format everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup     ## the small benchmarks; each prints a table and writes JSON
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file --small || exit 1; done

docs: $(STAMP)   ## build the docs, with the generated references, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "open site/index.html"

clean:           ## remove the environment and all caches
	rm -rf $(VENV) site docs/reference .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(STAMP) java
	@tools/push-jar --if-easy
	@$(BIN)/python -m compileall -q src  # also where Python is told to write no bytecode: `vk` starts in half the time

java:
	@tools/java

wheel: setup     ## a wheel with the jar of HBase's push endpoint (needs a JDK and Maven), in dist/
	@tools/push-jar
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

$(STAMP): pyproject.toml tools/venv
	@PYTHON=$(PYTHON) tools/venv $(VENV)
	@touch $@
