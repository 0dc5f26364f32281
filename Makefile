# Everything runs in .venv, which the targets make themselves. No other set-up is needed.

PYTHON := .venv/bin/python
# Tests of one file stay together; most of a whole site's tests wait more than they work.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo test soak lint bench docs clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: ## a hub with a simulated GPU lab on this machine
	@tools/environment.sh hub,proxy,notebook
	@$(PYTHON) -m tools.proxy.install >/dev/null
	$(PYTHON) -m tools.demo

test: lint ## lint, then every test this machine has the parts for
	@$(PYTHON) -m tools.proxy.install >/dev/null
	@$(PYTHON) -m tests.rig.images
	$(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

soak: ## random faults on a real site, for MINUTES=5 unless told otherwise
	@tools/environment.sh test
	@$(PYTHON) -m tools.proxy.install >/dev/null
	@$(PYTHON) -m tests.rig.images
	$(PYTHON) -m tests.soak --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED))

lint: ## style, types, and that imports go down only
	@tools/environment.sh test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: ## measure against plain DockerSpawner and nvitop, side by side
	@tools/environment.sh bench
	@$(PYTHON) -m tools.proxy.install >/dev/null
	$(PYTHON) -m bench

docs: ## build the documentation into docs/_build
	@tools/environment.sh docs
	.venv/bin/sphinx-build --fail-on-warning --quiet docs docs/_build/html

clean: ## remove what the targets made in this folder (kept images stay)
	rm -rf .venv .cache .demo .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
