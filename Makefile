# Lakehead's commands. `make help` lists them; a laptop and CI run the same words.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Stamps: .venv has what Lakehead needs to run, and what its developers need besides.
RUNNABLE := $(VENV)/.runnable
READY    := $(VENV)/.ready

# Tests start hundreds of processes: what they import is compiled once, whatever the machine's habit.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install check test soak jars lint types contracts sim demo bench-storage bench-start bench-landing bench-upkeep bench-extract bench-buffer bench-consume bench-gateway bench-agent bench-care bench-ops format lock clean

help: ## List every command
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY) ## Make .venv and install the locked dependencies

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Lakehead needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$($(PYTHON) -V 2>&1). Set PYTHON=/path/to/python3."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUNNABLE): requirements.txt pyproject.toml | $(BIN)/pip
	.ci/install requirements.txt
	@touch $@

$(READY): requirements-dev.txt pyproject.toml | $(BIN)/pip
	.ci/install requirements-dev.txt
	@touch $@ $(RUNNABLE)

JOBS   ?= 2
CORES  := $(shell getconf _NPROCESSORS_ONLN)
PYTEST := $(BIN)/pytest -q -n $(JOBS)
test: $(READY) ## Everything: format, lint, types, import contracts, all tests (JOBS=n processes)
	@$(MAKE) --no-print-directory -j 2 jars lint types contracts  # the first waits for the network, the others do not
	$(PYTEST) --durations 15 --maxfail 50  # a broken machine is told in minutes, not when CI's time is over

# Unit tests wait for disks only where that is what they are about: their folders are in memory, if the system has that.
check: lint types contracts ## The fast part: the same checks, quick unit tests and 10 seeds of every scenario
	PYTEST_DEBUG_TEMPROOT=$(wildcard /dev/shm) \
	  $(BIN)/pytest -q -n $(CORES) tests/unit tests/sim --sim-seeds 10 --hypothesis-profile check -m "not slow"

HOURS ?= 1
soak: $(READY) ## Everything at full length, then new seeds and kills until HOURS=1 are over (8 for a night)
	@$(BIN)/python -m tests.soak --hours $(HOURS) --jobs $(JOBS)

jars: $(READY)
	@$(BIN)/python -m tests.support.spark
	@$(BIN)/python -m tests.servers.sqs

lint: $(READY)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

types: $(READY)
	$(BIN)/mypy --no-error-summary

contracts: $(READY)
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

SEEDS    ?= 20000
SCENARIO ?=
SEED     ?=
sim: $(READY) ## Simulate: SEEDS=100000 for more, SCENARIO=name for one, SEED=n to replay one seed with its log
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--replay $(SEED))

demo: $(RUNNABLE) ## Load a small shop into Iceberg, change it, load it again (in lakehead-demo/)
	@$(BIN)/lakehead demo

bench-storage: $(READY) ## Measure the stores and the simulator against their limits
	@$(BIN)/python -m bench.storage

bench-start: $(READY) ## Measure how long Spark takes to its first job, against a plain session
	@$(BIN)/python -m bench.start

bench-landing: $(READY) ## Measure landings against bare tasks, Spark's own appends, and age (10 minutes)
	@$(BIN)/python -m bench.landing

bench-upkeep: $(READY) ## Measure 2,000 landings with upkeep beside them: times, metadata, files (5 minutes)
	@$(BIN)/python -m bench.upkeep

bench-extract: $(READY) ## Measure loads, merges and start-up against COPY, Spark and other tools (40 minutes; KEEP=1 keeps the result)
	@$(BIN)/python -m bench.extract $(if $(KEEP),--keep)

bench-buffer: $(READY) ## Measure the buffer: rates, delays, contention, memory (8 minutes)
	@$(BIN)/python -m bench.buffer

bench-consume: $(READY) ## Measure pipelines beside Spark's own readers: rows, messages, freshness, memory (10 minutes)
	@$(BIN)/python -m bench.consume

bench-gateway: $(READY) ## Measure gateways beside a server that checks nothing: rates, delays, scaling, memory (6 minutes; KEEP=1 keeps the result)
	@$(BIN)/python -m bench.gateway $(if $(KEEP),--keep)

bench-agent: $(READY) ## Measure agents beside a floor that parses and flushes the same: rates, memory, freshness (8 minutes; KEEP=1 keeps the result)
	@$(BIN)/python -m bench.agent $(if $(KEEP),--keep)

bench-care: $(READY) ## Measure the reconciler beside bare gets, garbage collection's requests, and the whole path (6 minutes; KEEP=1 keeps the result)
	@$(BIN)/python -m bench.care $(if $(KEEP),--keep)

bench-ops: $(READY) ## Measure what it costs to operate tables: comparing 3,000,000 rows with their source, telemetry on and off (7 minutes; KEEP=1 keeps the result)
	@$(BIN)/python -m bench.ops $(if $(KEEP),--keep)

format: $(READY) ## Format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
           --no-emit-find-links --no-annotate --custom-compile-command "make lock" -c .ci/constraints.txt
lock: $(READY) ## Choose the newest dependencies that fit pyproject.toml, and write both lock files
	$(COMPILE) --upgrade pyproject.toml -o requirements.txt
	$(COMPILE) --upgrade pyproject.toml --group dev -c requirements.txt -o requirements-dev.txt

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
