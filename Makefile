# The whole development interface. A fresh machine needs git, make and Python 3.11 or newer;
# Debian and Ubuntu also need python3-venv and libgomp1 (setup says so when they are missing).
#
#   make demo    run, verify and replay a small model, from nothing
#   make test    run the tests
#   make check   everything that CI runs
#
# PYTHON=python3.12 picks the interpreter, ARGS="-k merkle" goes to pytest,
# TALLYSTICK_VECTORS=DIR says where the public conformance vectors are.

VENV ?= .venv
BIN = $(VENV)/bin
ARGS ?=
export VENV PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint format types layers bench docs docs-check lock clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

setup:
	@sh scripts/setup.sh

demo: setup
	@$(BIN)/tallystick demo

test: setup
	$(BIN)/python -m pytest $(ARGS)

check: lint types layers test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m bench $(ARGS)

docs: setup
	$(BIN)/python -m scripts.write_cli_reference

docs-check: setup
	$(BIN)/python -m scripts.write_cli_reference --check

lock:
	sh scripts/lock.sh

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
