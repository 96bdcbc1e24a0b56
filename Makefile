# `make` alone lists the targets.

PYTHON := .venv/bin/python
INSTALLED := .venv/.installed
KERNEL := $(wildcard src/mqlake/kernel/*.pyx src/mqlake/kernel/*.pxi src/mqlake/kernel/*.h src/mqlake/torture/faults/*.c)

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long torture bench clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "make %-10s %s\n", $$1, $$2}'

setup: $(INSTALLED) ## Make .venv, build the kernel, install everything; leaves .venv/bin/mqlake

# Quick when nothing changed: the stamp is older than its sources only when there is something to install or build.
$(INSTALLED): pyproject.toml setup.py scripts/bootstrap $(KERNEL)
	scripts/bootstrap
	@touch $@

run: setup ## See it work: mqlake demo
	.venv/bin/mqlake demo

test: setup ## Lint, types, tests
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest

test-long: setup ## The tests that take long: storms and fuzzing
	$(PYTHON) -m pytest -m long

torture: setup ## Every fault of the table, on a temporary folder: half an hour
	$(PYTHON) -m mqlake torture $${TMPDIR:-/tmp} --full

bench: setup ## The benchmarks
	$(PYTHON) -m benchmarks

clean: ## Remove all that make made, .venv too
	rm -rf .venv build dist bench-out benchmarks/__pycache__ .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	rm -f src/mqlake/kernel/_compiled.c src/mqlake/kernel/*.so src/mqlake/torture/faults/*.so
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
