# Every target installs what it needs on a fresh machine and says so in one line each.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

# A lazy variable: uv is looked for, or installed, when a recipe first runs it.
UV = $$(tools/need uv)
RUN = $(UV) run --frozen --no-sync
# Our own builds fail on a compiler warning; scikit-build passes this to CMake.
export SKBUILD_CMAKE_DEFINE := MILLIGPU_WERROR=ON

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: ## the program and its tools, into .venv
	@command -v cc > /dev/null || tools/need debian gcc libc6-dev
	@test -e /usr/include/openssl/ssl.h || tools/need debian libssl-dev
	@$(UV) sync --frozen --quiet

.PHONY: demo
demo: install ## three trainings share one software GPU at 0.5, 0.3 and 0.2; prints a table, draws a picture
	@$(RUN) python examples/demo/demo.py

.PHONY: test
test: install packages ## the tests that every change must pass, those on a real Kubernetes included
	@$(RUN) python -m testing.suite test

.PHONY: test-fast
test-fast: install test-packages ## the tests that need no Kubernetes and no quiet machine
	@$(RUN) python -m testing.suite test-fast

.PHONY: test-all
test-all: install packages ## all tests, long random runs included; writes docs/tested.md
	@$(RUN) python -m testing.suite test-all

.PHONY: test-sanitized
test-sanitized: install ## tests of native/ with the address and undefined behavior sanitizers
	@$(RUN) python -m testing.suite test-sanitized

.PHONY: lint
lint: lint-style lint-types ## style, types, import rules

.PHONY: lint-style
lint-style: install
	@$(RUN) ruff check --quiet
	@$(RUN) ruff format --check --quiet
	@git ls-files -z 'native/*.[ch]' 'testing/*.[ch]' | xargs -0 $(RUN) clang-format --dry-run --Werror
	@$(RUN) lint-imports --no-logo

.PHONY: lint-types
lint-types: install
	@$(RUN) pyright --warnings

# What `make test-sanitized` builds first.
.PHONY: build-sanitized
build-sanitized: install
	@tools/sanitized --version > /dev/null

.PHONY: bench
bench: install ## the measurements of docs/benchmarks.md; they prove nothing, tests do
	@for script in bench/*.py; do echo "== $$script"; PYTHONPATH=. $(RUN) python $$script; done

.PHONY: kubernetes
kubernetes: install packages build-kubernetes

# Before anything runs in the background: it may ask for a password.
.PHONY: test-packages
test-packages:
	@tools/need debian $$(grep -v '^#' tests/packages.txt)

.PHONY: screenshots
screenshots: install test-packages ## the pictures of the dashboard in docs/dashboard
	@$(RUN) python -m testing.dashboard docs/dashboard

.PHONY: packages
packages: test-packages
	@tools/need debian $$(grep -v '^#' devcluster/packages.txt)
	@tools/need go > /dev/null

# Without installing first: `make test` builds while tests run from .venv.
.PHONY: build-kubernetes
build-kubernetes:
	@PATH="$$(dirname $$(tools/need go)):$$PATH" $(RUN) python -m devcluster build

# Kubernetes, and milligpu's own images, which the tests install by the chart.
.PHONY: build-for-tests
build-for-tests: build-kubernetes
	@$(RUN) python -m deploy.images

.PHONY: cluster
cluster: kubernetes ## a real Kubernetes on this machine, to try things on; GPUS=8 gives its node so many (2)
	@$(RUN) python -m devcluster up $(if $(GPUS),--gpus $(GPUS))

.PHONY: cluster-down
cluster-down: install ## take it away again
	@$(RUN) python -m devcluster down

.PHONY: images
images: install ## the container images as OCI archives, in out/images
	@$(RUN) python -m deploy.images

.PHONY: chart
chart: install ## the parts of deploy/chart that follow from the code
	@$(RUN) python -m deploy.chart

.PHONY: clean
clean: ## what was built here (not the caches)
	@rm -rf .venv build dist out
