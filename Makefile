# `make` alone lists the targets.

PYTHON := .venv/bin/python
INSTALLED := .venv/.installed
KERNEL := $(wildcard src/mqlake/kernel/*.pyx src/mqlake/kernel/*.pxi src/mqlake/kernel/*.h src/mqlake/torture/faults/*.c)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-rocketmq test-long torture bench docs dist clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "make %-13s %s\n", $$1, $$2}'

setup: $(INSTALLED) ## Make .venv, build the kernel, install everything; leaves .venv/bin/mqlake

# Quick when nothing changed: the stamp is older than its sources only when there is something to install or build.
$(INSTALLED): pyproject.toml setup.py scripts/bootstrap $(KERNEL)
	scripts/bootstrap
	@touch $@

# The packages of one extra, without building mqlake again.
.venv/.extra-%: $(INSTALLED)
	$(PYTHON) -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")' $* > $@
	$(PYTHON) -m pip install --quiet --requirement $@

run: setup ## See it work: mqlake demo
	.venv/bin/mqlake demo

test: setup ## Lint, types, tests
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest

test-rocketmq: setup ## A real RocketMQ on our stores; its clients (Java, Go, C++, Node) and mqadmin on our broker
	$(PYTHON) -m pytest -m "rocketmq and not long" tests/interop tests/clients

test-long: setup ## The tests that take long: storms and fuzzing
	$(PYTHON) -m pytest -m long

torture: setup ## Every fault of the table, on a temporary folder: about an hour
	$(PYTHON) -m mqlake torture $${TMPDIR:-/tmp} --full --jobs 2

bench: setup ## The benchmarks
	$(PYTHON) -m benchmarks

docs: .venv/.extra-docs ## The documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

dist: .venv/.extra-dist ## A source distribution and a wheel, in dist/
	$(PYTHON) -m build --no-isolation

clean: ## Remove all that make made, .venv too
	rm -rf .venv build dist site bench-out benchmarks/__pycache__ .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	rm -f src/mqlake/kernel/_compiled.c src/mqlake/kernel/*.so src/mqlake/torture/faults/*.so
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
