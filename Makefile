# Every target installs what it needs on a fresh machine and says so in one line each.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

# A lazy variable: uv is looked for, or installed, when a recipe first runs it.
UV = $$(tools/need uv)
RUN = $(UV) run --frozen --no-sync

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: ## the program and its tools, into .venv
	@command -v cc > /dev/null || tools/need debian gcc libc6-dev
	@$(UV) sync --frozen --quiet

.PHONY: demo
demo: install ## three trainings share one GPU (in software) at 0.5, 0.3 and 0.2; a table and a picture
	@$(RUN) python examples/demo/demo.py

.PHONY: test
test: install kubernetes ## all tests, those on a real Kubernetes included
	@$(RUN) pytest

.PHONY: test-fast
test-fast: install ## the tests that need no Kubernetes
	@$(RUN) pytest -m 'not e2e' -n $$(nproc) --dist worksteal -q

.PHONY: lint
lint: install ## style, types, import rules
	@$(RUN) ruff check --quiet
	@$(RUN) ruff format --check --quiet
	@$(RUN) pyright --warnings
	@$(RUN) lint-imports --no-logo

.PHONY: bench
bench: install ## the measurements of docs/benchmarks.md
	@for script in bench/*.py; do echo "== $$script"; PYTHONPATH=. $(RUN) python $$script; done

.PHONY: kubernetes
kubernetes: install
	@tools/need debian $$(grep -v '^#' devcluster/packages.txt)
	@PATH="$$(dirname $$(tools/need go)):$$PATH" $(RUN) python -m devcluster build

.PHONY: cluster
cluster: kubernetes ## a real Kubernetes on this machine, to try things on; GPUS=8 gives its node so many (2)
	@$(RUN) python -m devcluster up $(if $(GPUS),--gpus $(GPUS))

.PHONY: cluster-down
cluster-down: install ## take it away again
	@$(RUN) python -m devcluster down

.PHONY: clean
clean: ## what was built here (not the caches)
	@rm -rf .venv build dist out
