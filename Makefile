# Two commands need nothing but Python 3.11, pip and a package manager: make demo, make test.
# Variables: PYTHON (the interpreter for .venv), ARGS (more arguments for the command that runs),
# MINUTES (of chaos).

PYTHON :=
ARGS :=
MINUTES := 3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Another PYTHON than the one that .venv was made for: make it anew.
ifneq ($(PYTHON),)
ifneq ($(PYTHON),$(shell cat $(READY) 2>/dev/null))
$(shell rm -f $(READY))
endif
endif

.DEFAULT_GOAL := help
.PHONY: help demo test lint types zookeeper pytest chaos bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(READY)  ## play the locks against a real ZooKeeper, before your eyes
	$(BIN)/zklock demo $(ARGS)

test: lint types pytest  ## linter, formatter, types, and all tests; ZKLOCK_TEST_STRICT=1 lets no test be skipped

lint: $(READY)  ## ruff's checks and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy --strict
	$(BIN)/mypy

zookeeper: $(READY)  ## find a ZooKeeper, or install Debian's as root
	@$(BIN)/python -m zklock.testing.provision

pytest: zookeeper  ## the tests alone
	$(BIN)/python -m pytest $(ARGS)

chaos: zookeeper  ## workers under a nemesis for MINUTES, and the verdict; ARGS="--seed S" replays the faults
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

bench: zookeeper  ## locks and guards against their peers, as ratios; a worker pool
	$(BIN)/python -m tests.bench.bench_lock
	$(BIN)/python -m tests.bench.bench_fencing
	$(BIN)/python -m tests.bench.bench_pool
	$(BIN)/python -m tests.bench.bench_failover
	$(BIN)/python -m tests.bench.bench_waiters

clean:  ## remove what these targets have made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .zookeeper build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): setup.cfg pyproject.toml zklock/_version.py .ci/venv
	bash .ci/venv $(VENV) $(PYTHON)
	@echo '$(PYTHON)' > $@
