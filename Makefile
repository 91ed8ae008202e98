# ddtree-deploy. `make demo` and `make test` are all a newcomer needs; everything made goes to build/.
# Needs root, Debian 12, Python 3.11; installs the rest itself. PYTHON names another Python 3.11.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
export PYTHON
LAPTOP := build/venv/bin
ENGINE := build/engine/bin
PYTEST := -m pytest -p no:cacheprovider

.PHONY: help demo test test-unit test-deployer test-ext test-engine test-lab test-faults test-fleet test-full lint laptop engine pairs packages lab wheelhouse clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: ## the main job, end to end, on the staging box
	@tests/setup/demo.sh

test: ## everything that decides whether a change may land; prints one summary per part
	@tests/setup/test.sh

test-full: ## `make test` with the large numbers
	@FULL=1 tests/setup/test.sh

lint: laptop ## ruff and mypy --strict
	$(LAPTOP)/ruff check .
	$(LAPTOP)/mypy

test-unit: laptop ## the deployer, for daily work: under two minutes
	$(LAPTOP)/python $(PYTEST) tests/deployer -m 'not slow'

test-deployer: laptop ## the deployer with cut links, full disks and whole command lines
	$(LAPTOP)/python $(PYTEST) tests/deployer

test-ext: engine ## the algorithm and its kernels, interpreted and not compiled: under two minutes
	$(ENGINE)/python $(PYTEST) tests/ext -m 'not engine and not full and not slow'

test-engine: engine pairs ## trees in vLLM's CPU build, on trained pairs
	$(ENGINE)/python $(PYTEST) tests/ext tests/pairs -m 'engine and not full'

test-lab: packages laptop wheelhouse pairs ## the staging box, and the deployer on it
	$(LAPTOP)/python $(PYTEST) tests/lab tests/e2e -m 'not full'

test-faults: packages laptop wheelhouse pairs ## every fault in every step of an `up`: an hour; FAULTS_QUICK=1 with a stand-in engine
	$(LAPTOP)/python $(PYTEST) tests/faults

test-fleet: packages laptop wheelhouse pairs ## two boxes behind a router: a rolling upgrade under load
	$(LAPTOP)/python $(PYTEST) tests/e2e/test_fleet_standin.py tests/e2e/test_fleet.py -m full -s

packages: ## Debian packages: LXC, OpenSSH, rsync ...
	@tests/setup/packages.sh

laptop: packages ## what an operator's laptop has: the deployer, and the tools of this repository
	@tests/setup/laptop.sh build/venv

engine: packages ## vLLM's CPU build with ddtree_ext, to test against
	@tests/engine_cpu/install.sh build/engine

pairs: engine ## the trained tiny pairs
	@tests/setup/pairs.sh

wheelhouse: laptop ## wheels of the CPU build for the staging box
	@$(LAPTOP)/python -m deployer.install.wheelhouse build/wheelhouse

lab: packages ## boots the staging box: kpro5, and CT129 in it
	@tests/lab/lab.sh build && tests/lab/lab.sh up

clean: ## stops the staging box and removes build/
	@tests/lab/lab.sh down
	@rm -rf build
