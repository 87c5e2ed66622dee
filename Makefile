# moescale: `make help` lists what there is.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Versions to install; constraints-ci.txt pins all of them.
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
SUPPORTED := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
# Why the environment that is there cannot be used and is made anew; empty where it can, and where there is none.
STALE := $(shell test ! -e $(VENV) \
  || if ! $(BIN)/python $(SUPPORTED) 2>/dev/null; then echo "its Python does not run, or is older than 3.11"; \
  elif test "$(origin PYTHON)" != file && test "$$($(PYTHON) --version 2>&1)" != "$$($(BIN)/python --version 2>&1)"; \
  then echo "its Python is not $(PYTHON)"; fi)
# Without bytecode on disk, every process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# More measured servings, for a benchmark.
ifneq ($(wildcard ../shared/data),)
export MOESCALE_SHARED ?= $(abspath ../shared)
endif

# Tests run in so many processes. A process takes tests in the order of the files, so that what a file's tests share is made once, and
# takes over tests of the other when it has none left: files differ too much in length to be handed out whole.
WORKERS ?= 2
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install plan check unit test test-engines test-fuzz lint types docs bench page regenerate calibrate clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

ifneq ($(STALE),)
$(VENV)/.installed: anew
endif
.PHONY: anew
anew:

# The Python is asked first: an environment of one that is too old would stay, and be taken at the next call.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
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
	$(PIP) --editable '.[test,train,track]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	@touch $@

install: $(VENV)/.installed ## create .venv and install moescale into it

plan: $(VENV)/.installed ## the main job on the built-in defaults: a plan for 5.15e21 FLOPs served on 8 x A100-SXM-40GB
	@$(BIN)/moescale plan --budget 5.15e21 --gpu a100-sxm-40gb --max-gpus 8

check: $(VENV)/.test ## lint, types and the unit tests beside each other
	@$(MAKE) --no-print-directory --jobs 3 lint types unit WORKERS=1  # the types keep another core busy as long

unit: $(VENV)/.test ## the tests that neither start processes nor fit, draw or sweep for long
	$(PYTEST) -m 'not system and not engine and not fuzz'

test: $(VENV)/.test ## all tests but those that start an engine or fuzz
	$(PYTEST) $(TESTS)

test-engines: $(VENV)/.train ## the tests that need torch, transformers or an external engine
	$(BIN)/pytest -m engine

test-fuzz: $(VENV)/.test ## property-based tests with many examples, the slowest tests, and damaged input for every reader, over a hundred thousand
	$(BIN)/pytest -m '(fuzz or hypothesis) and not engine' --hypothesis-profile long

lint: $(VENV)/.test ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Room for what is young in memory spares Node's collector a sixth of the time.
types: $(VENV)/.test ## pyright, strict
	NODE_OPTIONS=--max-semi-space-size=256 $(BIN)/pyright

# The variable silences a notice of the theme's makers, which is no warning of the build.
docs: $(VENV)/.docs ## the documentation as a site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.test ## the speed claims, import time and size of the wheel, measured
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/package.py

page: ## build the page of `moescale web` into src/moescale/web/static (needs Node.js)
	cd web && npm ci --no-audit --no-fund && npm run build
	$(PYTHON) scripts/store_page.py

# What writes tracked files: scripts by name, and the page, in the order in which one rests on another. refresh_docs is last, as it
# runs the commands of all pages.
GENERATORS := page document_laws document_shapes document_roofline document_servings document_reproduction \
  document_silicon document_hindcasts document_accuracy snapshot refresh_docs
# What answers rest on, and pictures that no two browsers take alike: by name alone. fit_joint.py needs a table of runs besides.
BY_NAME := fit_pooled2026 fit_scores make_kernel_tables fit_moe_formulas calibrate_roofline recover_yun2024 make_public_ensemble make_example_runs make_example_requests photograph_page
ARGUMENTS_snapshot := --write
ARGUMENTS_fit_scores := --write
LEFT_OUT = $(if $(shell command -v npm),,page)
named = $(if $(strip $(foreach word,$(ONLY),$(findstring $(word),$(1)))),$(1))
CHOSEN = $(strip $(if $(ONLY),$(foreach name,$(GENERATORS),$(call named,$(name))) $(filter $(ONLY),$(BY_NAME)),\
  $(filter-out $(LEFT_OUT),$(GENERATORS))))

regenerate: $(VENV)/.test ## write all generated files that are tracked; ONLY="laws figures": those whose script has such a name
	@test -n "$(CHOSEN)" || { echo "ONLY=$(ONLY) names none of: $(GENERATORS) $(BY_NAME)" >&2; exit 1; }
	@$(if $(ONLY),,$(if $(strip $(LEFT_OUT)),echo "left out (needs Node.js): $(strip $(LEFT_OUT))" >&2))
	@for name in $(CHOSEN); do echo "== $$name"; $(MAKE) --no-print-directory regenerate-$$name || exit 1; done

calibrate: ## fit the formulas and constants of the latency sources to the kernel tables again, then see `make regenerate`
	@$(MAKE) --no-print-directory regenerate ONLY="fit_moe_formulas calibrate_roofline"

regenerate-page: page

regenerate-%: scripts/%.py
	$(BIN)/python $< $(ARGUMENTS_$*)

clean: ## remove the environment and caches
	rm -rf $(VENV) build dist web/node_modules .pytest_cache .ruff_cache .hypothesis
