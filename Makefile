# `make lab` brings up a GPU cluster on this machine, `make test` proves the project; `make help` lists the rest.
# Everything runs in the locked environment .venv, which `make env` makes from uv.lock by itself.

SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON3 ?= python3
BIN := .venv/bin
LAB := src/myriad/lab
# Arguments after a target: make test ARGS="-k placement"
ARGS ?=
# Of make soak: how long, and from which seed (drawn and printed without one).
MINUTES ?= 30
SEED ?=
PYTEST := $(BIN)/pytest $(ARGS)

.PHONY: help env preflight lab lab-down lab-clean lab-status check lint types unit molecule test test-full integration e2e soak \
        bench-placement bench-scale bench-scheduling bench-storm bench-protection bench-bringup bench-prewarm bench-image bench-page bench-eta bundle validate build clean

help: ## list the verbs
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: ## the locked Python environment (.venv); does nothing when it is there
	@python=$$($(PYTHON3) $(LAB)/preflight.py --pick-python) && "$$python" $(LAB)/environment.py --quiet

preflight: ## look at this machine and tell all that is wrong; changes nothing
	@$(PYTHON3) $(LAB)/preflight.py

lab: ## a real cluster on this machine: one control plane, three GPU nodes, a gang job
	@$(PYTHON3) $(LAB)/preflight.py
	@python=$$($(PYTHON3) $(LAB)/preflight.py --pick-python) && "$$python" $(LAB)/environment.py
	@$(BIN)/myriad lab up --from-make $(ARGS)

lab-status: env ## what the lab is and how its nodes do
	@$(BIN)/myriad lab status

lab-down: env ## remove the lab, its network and settings, and the engine if make lab started it
	@$(BIN)/myriad lab down

lab-clean: env ## remove the caches too: store, bundles, Go and Python caches
	@$(BIN)/myriad lab clean

lint: env ## ruff, yamllint, ansible-lint, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict .
	ANSIBLE_LINT_SKIP_SCHEMA_UPDATE=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline

types: env ## mypy --strict
	$(BIN)/mypy

unit: env ## unit and contract tests, on every core
	$(PYTEST) -n auto --dist loadfile tests/unit tests/contract

# Side by side where there are cores; each part's output comes in one piece. The environment is made before them, once.
check: env ## for a first contribution: lint, types, unit, contract; no root, no engine, minutes
	@echo "unit, lint and types side by side; each shows its output when it ends"
	@$(MAKE) --no-print-directory -j2 --output-sync=target unit lint types

integration: env ## the wheel and the collection, built, installed and used
	$(PYTEST) tests/integration -m "not slow"

molecule: env ## every role's scenario, one after the other on two nodes, with their times
	$(PYTEST) tests/integration/test_molecule.py -k one_after_the_other

test: check ## everything that a change must pass: check, integration and end to end on a lab of its own
	$(BIN)/python -m myriad.lab.testing -m "not slow" tests/integration tests/api tests/e2e $(ARGS)

test-full: check ## make test and the slow tests, for the night (about three hours)
	$(BIN)/python -m myriad.lab.testing tests/integration tests/api tests/e2e tests/scale $(ARGS)

soak: env ## random faults against running gangs on the lab that is up: MINUTES=30 SEED=n ARGS=--dry-run
	@$(BIN)/myriad lab soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench-placement: env ## one placement decision at 10,000 and 50,000 GPUs, as JSON lines
	@$(BIN)/python -m tests.scale.bench_placement $(ARGS)

bench-scale: env ## the playbooks over 10, 100 and 1,000 simulated hosts: nothing to do, one added, 3 % dead, as JSON lines
	@$(BIN)/python -m tests.scale.bench_scale $(ARGS)

bench-scheduling: env ## Kueue alone, with TAS, steered by Myriad on 1,250 simulated nodes, paired by seed, as JSON lines
	@$(BIN)/python -m tests.scale.bench_scheduling $(ARGS)

bench-storm: env ## the extension beside 5,000 simulated nodes, at rest and in storms, as JSON lines
	@$(BIN)/python -m tests.scale.bench_storm $(ARGS)

bench-protection: env ## a 128-node gang in a pool kept full, with and without a protected domain (simulated), as JSON lines
	@$(BIN)/python -m myriad.bench.protection $(ARGS)

bench-prewarm: env ## a 10 GB image to 1,250 and 5,000 nodes: waves, all at once, one by one, as JSON lines
	@$(BIN)/python -m myriad.bench.prewarm $(ARGS)

bench-bringup: env ## the cluster by hand, then by site.yml, both times and their ratio
	@$(BIN)/python -m myriad.bench.bringup $(ARGS)

bench-image: env ## an image built cold and warm, by docker build, and pulled in layers and as one, as JSON lines
	@$(BIN)/python -m myriad.bench.image $(ARGS)

bench-page: env ## the page of 1,250 nodes in a browser, and 200 clients on its stream, as JSON lines
	@$(BIN)/python -m myriad.bench.page $(ARGS)

bench-eta: env ## start estimates against a simulated month and against first-in-first-out by limits, as JSON lines
	@$(BIN)/python -m myriad.bench.eta $(ARGS)

bundle: env ## every artifact of the lock in one folder, from releases or from source
	@$(BIN)/myriad bundle build $(ARGS)

validate: env ## check every inventory of this project
	@$(BIN)/myriad validate -i inventories/lab
	@$(BIN)/myriad validate -i inventories/example

build: env ## the wheel and the collection tarball, into dist/
	@$(BIN)/uv build --wheel --out-dir dist
	@$(BIN)/ansible-galaxy collection build --force --output-path dist

clean: ## remove what builds and tools leave in the clone; the lab and the caches stay
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
