# worldloop: `make play` on a bare machine, and every check that CI runs.
#
# Variables (set as `make NAME=value target`):
#   PYTHON       interpreter for .venv; default: the first of python3.13, 3.12, 3.11, python3 that is 3.11 or newer
#   PIP_ARGS     further arguments of `pip install`
#   TORCH_INDEX  further package index to find torch in. On Linux the default torch wheel of PyPI brings several
#                GB of CUDA libraries; without an NVIDIA card, take the small CPU build from PyTorch's own index:
#                  make TORCH_INDEX=https://download.pytorch.org/whl/cpu play
#   PLAY_ARGS    arguments of `worldloop play`;  BENCH_ARGS  of `worldloop bench`;  TEST_ARGS  of pytest

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP_ARGS ?=
TORCH_INDEX ?=
PLAY_ARGS ?=
BENCH_ARGS ?=
TEST_ARGS ?=
FIND_PYTHON = for each in python3.13 python3.12 python3.11 python3; do \
	if "$$each" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "$$each"; break; fi; done
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(PIP_ARGS)
PATHS := src tests docs $(wildcard bench) $(wildcard examples)

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

.PHONY: install
install: $(VENV)/.installed ## Make .venv and install what serving, training and the environment need

.PHONY: play
play: $(VENV)/.installed ## Open a world in the browser (PLAY_ARGS="--port 9000")
	@$(BIN)/worldloop play $(PLAY_ARGS)

.PHONY: test
test: $(VENV)/.installed-dev browser ## Run every test (TEST_ARGS="tests/codec -x")
	$(BIN)/pytest $(TEST_ARGS)

.PHONY: lint
lint: $(VENV)/.installed-dev ## Check style and formatting
	$(BIN)/ruff check $(PATHS)
	$(BIN)/ruff format --check $(PATHS)

.PHONY: types
types: $(VENV)/.installed-dev ## Check types
	$(BIN)/mypy

.PHONY: layers
layers: $(VENV)/.installed-dev ## Check who imports whom
	$(BIN)/lint-imports

.PHONY: bench
bench: $(VENV)/.installed ## Measure this machine (BENCH_ARGS="--frames 200")
	$(BIN)/worldloop bench $(BENCH_ARGS)

.PHONY: docs
docs: $(VENV)/.installed-dev ## Run the code in README and docs
	$(BIN)/pytest tests/test_docs.py

.PHONY: check
check: lint types layers test ## Everything that a change must pass

.PHONY: clean
clean: ## Remove caches and build output; .venv stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python="$(PYTHON)"; \
	[ -n "$$python" ] || python="$$($(FIND_PYTHON))"; \
	if [ -z "$$python" ]; then \
		echo "make: no Python 3.11 or newer with venv found. On Debian: apt-get install python3 python3-venv;" \
			"or name one: make PYTHON=/path/to/python3.12 play" >&2; exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing worldloop into $(VENV); the first time takes minutes, most of it torch"
	$(INSTALL) -e '.[all]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing worldloop and its checks into $(VENV); the first time takes minutes, most of it torch"
	$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.installed $@

.PHONY: browser
browser:
	@if command -v chromium >/dev/null; then exit 0; fi; \
	root=; [ "$$(id -u)" = 0 ] || root="sudo -n"; \
	if command -v apt-get >/dev/null && $$root true 2>/dev/null; then \
		echo "installing Chromium for the browser tests"; \
		$$root apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive $$root apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	elif [ -n "$${CI:-}" ]; then \
		echo "make: the browser tests need a command 'chromium' on PATH" >&2; exit 1; \
	else \
		echo "make: no command 'chromium' on PATH; the browser tests will be skipped. Install Chromium to run them."; \
	fi
