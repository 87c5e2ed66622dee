# moescale: `make help` lists what there is.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Public run and serving data that some tests check against; they skip with a reason where it is absent.
ifneq ($(wildcard ../shared/data),)
export MOESCALE_SHARED ?= $(abspath ../shared)
endif

.DEFAULT_GOAL := help
.PHONY: help install plan test test-engines test-fuzz lint types docs bench page clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
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
