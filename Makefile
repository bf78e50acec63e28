# Two commands need nothing but Python 3.11, pip and a package manager: make demo, make test.
# Variables: PYTHON (the interpreter for .venv), ARGS (more arguments for the command that runs),
# WORKERS (how many processes share the tests; 0 for none), FULL (1: with the tests that are left to the
# nightly run), MINUTES (of chaos, and of the simulator).

PYTHON :=
ARGS :=
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS :=
FULL :=
MINUTES := 3
VENV := .venv
BIN := $(VENV)/bin
# There is what the demo needs; what tests without a server need; what all targets need; mutants besides.
DEMO := $(VENV)/.demo
CHECK := $(VENV)/.check
READY := $(VENV)/.ready
MUTATING := $(VENV)/.mutating

# Another PYTHON than the one that .venv was made for: make it anew.
ifneq ($(PYTHON),)
ifneq ($(PYTHON),$(shell cat $(DEMO) 2>/dev/null))
$(shell rm -f $(DEMO) $(CHECK) $(READY))
endif
endif

# Tests start processes by the hundred, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
ifneq ($(FULL),)
export ZKLOCK_TEST_FULL := $(FULL)
endif

# The tests against a server wait for most of their time. Each process collects all tests, and has a server.
SHARED := -n $(or $(WORKERS),$(shell echo $$(($(CORES) + 7)))) --dist loadscope --no-loadscope-reorder
# Tests of narrow margins between many holders and an ensemble run by themselves, after all others, where
# nothing is left out.
ALONE := tests/cluster/test_partitions.py
TOGETHER = +@$(MAKE) --no-print-directory -j

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types unit zookeeper pytest nightly newest jitter coverage docs package chaos simulate mutants bench compare figures findings clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(DEMO)  ## play the locks against a real ZooKeeper, before your eyes
	$(BIN)/zklock demo $(ARGS)

test: $(CHECK)  ## all that a change has to pass, deterministic tests first; with ARGS, some tests on a real ZooKeeper
ifeq ($(strip $(ARGS)$(FULL)),)
	@$(TOGETHER) lint types
	@$(BIN)/python -m tests.run unit played; deterministic=$$?; \
	  $(MAKE) --no-print-directory zookeeper && $(BIN)/python -m tests.run real && exit $$deterministic
else
	$(TOGETHER) lint types pytest
endif

check:  ## linter, formatter, types, and the unit tests, without the lengthy ones: no ZooKeeper
	$(TOGETHER) lint types unit

lint: $(CHECK)  ## ruff's checks and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(CHECK)  ## mypy --strict
	$(BIN)/mypy

zookeeper: $(READY)  ## find a ZooKeeper, or install Debian's as root
	@$(BIN)/python -m zklock.testing.provision

# The unit tests compute, but for a few that wait.
unit: $(CHECK)
	ZKLOCK_TEST_QUICK=1 $(BIN)/python -m pytest -q -n $(or $(WORKERS),$(shell echo $$(($(CORES) + 1)))) --dist worksteal tests/unit $(ARGS)

# In a fresh clone, one process compiles all tests. Else each of those that share them would.
tests/__pycache__: | $(READY)
	@$(BIN)/python -m pytest -q --collect-only >/dev/null || true

pytest: zookeeper | tests/__pycache__  ## tests of ARGS, or all of them, on a real ZooKeeper; FULL=1: none left out
ifeq ($(filter tests/%,$(ARGS)),)
ifeq ($(FULL),)
	$(BIN)/python -m pytest -q $(SHARED) $(ARGS)
else
	$(BIN)/python -m pytest -q $(SHARED) $(ALONE:%=--ignore=%) $(ARGS); shared=$$?; \
	  $(BIN)/python -m pytest -q $(ALONE) $(ARGS) && exit $$shared
endif
else
	$(BIN)/python -m pytest -q $(SHARED) $(ARGS)
endif

nightly:  ## what takes long and seldom finds anything, with new seeds: the seed is the date
	@bash .ci/nightly $(ARGS)

newest:  ## the newest ZooKeeper, Pythons, libraries and drivers that can be had, into docs/versions.md
	@bash .ci/newest $(ARGS)

jitter: zookeeper  ## tests of ARGS, or those against a server, while all threads are delayed at random
	$(BIN)/python -m pytest -q $(SHARED) -p tests.jitter $(or $(ARGS),tests/contract)

coverage: zookeeper  ## branch coverage of all but zklock.testing, by the tests that need one server
	rm -rf .coverage && mkdir .coverage
	$(BIN)/coverage run -m pytest -q $(SHARED) tests/unit tests/contract $(ARGS); failed=$$?; \
	  $(BIN)/coverage combine -q && $(BIN)/coverage report && exit $$failed

docs: $(READY)  ## the pages as a site, in build/site; warnings are errors
	$(BIN)/python docs/site/make.py
	@echo "docs: see build/site/html/index.html"

package:  ## sdist, wheel and SBOM in dist, checked and tried in clean environments; publishes nothing
	@bash .ci/package dist

chaos: zookeeper  ## workers under a nemesis for MINUTES, and the verdict; ARGS="--seed S" replays the faults
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

simulate: $(CHECK)  ## new seeds for MINUTES of a processor; ARGS="SEED…" tells the stories of some
ifeq ($(ARGS),)
	ZKLOCK_SIMULATE=$$(($(MINUTES) * 60)) $(BIN)/python -m pytest -q -n 2 tests/unit/simulator/test_new_seeds.py
else
	$(BIN)/python -m tests.unit.simulator $(ARGS)
endif

mutants: $(MUTATING)  ## small faults in the core, one at a time: which do unit tests notice? ARGS="zklock._core.lease.*" for some
	$(BIN)/mutmut run $(ARGS)
	@$(BIN)/mutmut results | sed -n 's/: survived$$//p' | xargs -rn 1 $(BIN)/mutmut show

bench: zookeeper  ## locks and guards against their peers, as ratios; a worker pool
	for case in lock "lock nodes=3" kinds fencing pool failover waiters rest locks start "run runs=10"; do \
	  $(BIN)/python -m tests.bench $$case || exit; \
	done

compare: zookeeper  ## what two dozen locks do, into tests/compare/results.json and the page; ARGS="RedisPy" for some, --write
	$(BIN)/python -m tests.compare $(ARGS)
	$(BIN)/python -m tests.compare.page

figures: zookeeper  ## measure what docs/benchmarks.md plots, and draw it; takes a quiet machine and some fifteen minutes
	mkdir -p tests/bench/results
	$(BIN)/python -m tests.bench lock --json tests/bench/results/lock.json
	$(BIN)/python -m tests.bench lock nodes=3 --json tests/bench/results/ensemble.json
	$(BIN)/python -m tests.bench fencing --json tests/bench/results/fencing.json
	$(BIN)/python -m tests.bench failover --json tests/bench/results/failover.json
	$(BIN)/python docs/site/pictures.py

findings:  ## what others' software does that one guesses wrong: all scripts of findings/; some want Debian's packages
	@failed=0; for script in findings/*.sh; do \
	  echo "== $$script"; timeout 600 bash $$script; code=$$?; \
	  case $$code in 0) ;; 69) echo "not run: something is missing" ;; *) echo "exit $$code"; failed=1 ;; esac; \
	done; exit $$failed

clean:  ## remove what these targets have made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .zookeeper build dist mutants *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): setup.cfg setup.py pyproject.toml zklock/_version.py .ci/venv
	@bash .ci/venv $(VENV) demo $(PYTHON)
	@echo '$(PYTHON)' > $@

$(CHECK): setup.cfg setup.py pyproject.toml zklock/_version.py .ci/venv
	@bash .ci/venv $(VENV) check $(PYTHON)
	@echo '$(PYTHON)' > $(DEMO)
	@touch $@

$(READY): setup.cfg setup.py pyproject.toml zklock/_version.py .ci/venv
	@bash .ci/venv $(VENV) test $(PYTHON)
	@echo '$(PYTHON)' > $(DEMO)
	@touch $(CHECK) $@

$(MUTATING): $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check 'mutmut >= 3.8, < 4'
	@touch $@
