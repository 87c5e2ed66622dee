# moescale: `make help` lists what there is.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SUPPORTED := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
# Why the environment that is there cannot be used and is made anew; empty where it can, and where there is none.
STALE := $(shell test ! -e $(VENV) \
  || if ! $(BIN)/python $(SUPPORTED) 2>/dev/null; then echo "its Python does not run, or is older than 3.11"; \
  elif test "$(origin PYTHON)" != file && test "$$($(PYTHON) --version 2>&1)" != "$$($(BIN)/python --version 2>&1)"; \
  then echo "its Python is not $(PYTHON)"; fi)
# Public run and serving data that some tests check against; they skip with a reason where it is absent.
ifneq ($(wildcard ../shared/data),)
export MOESCALE_SHARED ?= $(abspath ../shared)
endif

.DEFAULT_GOAL := help
.PHONY: help install plan test test-engines test-fuzz lint types docs bench page clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

ifneq ($(STALE),)
$(VENV)/.installed: anew
endif
.PHONY: anew
anew:

# The Python is asked first: an environment of one that is too old would stay, and be taken at the next call.
$(VENV)/.installed: pyproject.toml constraints.txt
	@if test -n "$(STALE)" || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  found=$$($(PYTHON) --version 2>&1 | head -n 1); \
	  command -v $(PYTHON) >/dev/null || found="not found"; \
	  if ! $(PYTHON) $(SUPPORTED) 2>/dev/null; then \
	    echo "moescale needs Python 3.11 or later, and $(PYTHON) is $$found;" \
	      "name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; fi; \
	  test -z "$(STALE)" || echo "$(VENV) is made anew: $(STALE)" >&2; \
	  $(PYTHON) -m venv $(if $(STALE),--clear) $(VENV); fi
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(PIP) --editable '.[test,lint]'
	@touch $@

# torch first and pinned, so that nothing pulls another build of it.
$(VENV)/.train: $(VENV)/.test
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[test,train,cluster,track]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	@touch $@

install: $(VENV)/.installed ## create .venv and install moescale into it

plan: $(VENV)/.installed ## the main job on the built-in defaults: a plan for 5.15e21 FLOPs served on 8 x A100-SXM-40GB
	@$(BIN)/moescale plan --budget 5.15e21 --gpu a100-sxm-40gb --max-gpus 8

test: $(VENV)/.test ## all tests but the slow ones that start an engine or fuzz
	$(BIN)/pytest

test-engines: $(VENV)/.train ## the tests that need torch, transformers or an external engine
	$(BIN)/pytest -m engine

test-fuzz: $(VENV)/.test ## the long property-based tests, and damaged input for every reader, over a hundred thousand
	$(BIN)/pytest -m fuzz

lint: $(VENV)/.test ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test ## pyright, strict
	$(BIN)/pyright

# The variable silences a notice of the theme's makers, which is no warning of the build.
docs: $(VENV)/.docs ## the documentation as a site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.test ## the speed claims, import time and size of the wheel, measured
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/package.py

page: ## build the page of `moescale web` into src/moescale/web/static (needs Node.js)
	cd web && npm ci --no-audit --no-fund && npm run build

clean: ## remove the environment and caches
	rm -rf $(VENV) build dist web/node_modules .pytest_cache .ruff_cache .hypothesis
