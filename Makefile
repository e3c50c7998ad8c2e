# What a person does here, one word each. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
# Stamps: as long as the locks have not changed, a warm start installs nothing.
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
COMPILED := $(VENV)/.compiled
# pip of the venv, or else the machine's own pip pointed at it: Debian leaves ensurepip out of python3.
PIP = $$($(VENV)/bin/python -c 'import pip' 2>/dev/null && echo $(VENV)/bin/python || echo $(PYTHON)) -m pip --python $(VENV)/bin/python
INSTALL = $(PIP) install --quiet --no-compile --disable-pip-version-check --no-input
# A new checkout compiles only modules that are not in this folder. If it is empty, it compiles all of them.
export APPORTION_COMPILED ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/apportion/compiled
# What was compiled of other sources than these goes first: the import below would take it for theirs.
STALE = find services -name '*.so' -delete; rm -f $(COMPILED)
# What services import becomes bytecode once, also where PYTHONDONTWRITEBYTECODE says that a start leaves none: or
# the first start, if not every one, would compile it in five processes at once.
BYTECODE = env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -c 'import apportion.agent.main, \
	apportion.binder.main, apportion.cli.up.main, apportion.cli.up.standalone, apportion.gateway.main, apportion.scheduler.main'

# make up GPUS=local        the cards of this machine instead of a simulated fleet
# make up UP_ARGS="..."     any further option of `apportion up`
GPUS ?=
UP_ARGS ?=
TEST_ARGS ?=
LANE ?=

.PHONY: help up test nightly compile wheel sbom audit sim faults mutants check format lock generate digests oldest clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

up: $(RUNTIME) ## install what running needs, start everything, place the sample pods; Ctrl-C ends it (GPUS=local; UP_ARGS="--port 0")
	@exec $(VENV)/bin/apportion up $(if $(GPUS),--gpus $(GPUS)) $(UP_ARGS)

test: $(DEV) $(COMPILED) ## every check that this machine can run, in lanes (LANE=core; TEST_ARGS="-k ledger")
	@$(VENV)/bin/python -m $(if $(TEST_ARGS),pytest $(TEST_ARGS),tools.lanes $(LANE))

BASE ?= main
CHANGED_ARGS ?=
.PHONY: test-changed
test-changed: $(DEV) $(COMPILED) ## the tests that the changes since BASE can break, for while you develop (BASE=main; CHANGED_ARGS=--processes)
	@$(VENV)/bin/python -m tools.changed $(CHANGED_ARGS) $(BASE)

EFFORT ?= 3
nightly: $(DEV) $(COMPILED) ## what takes long and rarely fails, and what needs other versions of Kubernetes
	@PROPERTIES_EFFORT=$(EFFORT) $(VENV)/bin/python -m tools.lanes --nightly
	@$(MAKE) oldest
	@$(MAKE) controllers
	@$(MAKE) unused

compile: $(DEV) $(COMPILED) ## the hot path, to machine code; without a C compiler it runs as it is

DIST ?= dist
wheel: $(DEV) ## a wheel with the compiled modules, for every Linux whose glibc they run on (DIST=dist)
	@rm -rf build/wheel
	@env -u APPORTION_OPTIMIZATION $(PIP) wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/auditwheel repair --wheel-dir $(DIST) build/wheel/*.whl

sbom: $(DEV) ## the bill of materials, in CycloneDX (DIST=dist)
	@$(VENV)/bin/python -m tools.bill $(DIST)/apportion.cdx.json

KEY ?=
BUILD_ARGS ?=
.PHONY: release
release: $(DEV) ## wheel, image, chart, bill of materials, and signed provenance (KEY=FILE DIST=dist; needs podman)
	@test -f "$(KEY)" || { echo "make release needs KEY=FILE, a key of: apportion receipt key FILE" >&2; exit 1; }
	@[ -z "$$(ls -A $(DIST) 2>/dev/null)" ] || { echo "$(DIST) is not empty: name another folder by DIST=" >&2; exit 1; }
	@[ -z "$$(git status --porcelain)" ] || { echo "commit first: make release signs what a commit has" >&2; exit 1; }
	@APPORTION_COMPILED= $(MAKE) --no-print-directory wheel
	podman build --tag apportion:release --file deploy/docker/Dockerfile $(BUILD_ARGS) .
	podman save --quiet --format oci-archive --output $(DIST)/apportion.oci.tar apportion:release
	@"$$(tests/support/control_plane_build.sh --helm)/helm" package --destination $(DIST) deploy/helm/apportion
	@$(VENV)/bin/python -m tools.bill $(DIST)/apportion.cdx.json --image apportion:release
	@$(VENV)/bin/python -m tools.release sign --key $(KEY) $(DIST)

audit: ## the packages that we ship with against the advisories that are known by now (needs the network)
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && python3 -m venv "$$dir" \
	  && "$$dir/bin/pip" install --quiet --require-hashes -r requirements/audit.txt \
	  && "$$dir/bin/pip-audit" --require-hashes --disable-pip -r requirements/runtime.txt

ROUNDS ?= 20
faults: $(DEV) $(COMPILED) ## servers, services and disks that fail for real, under load (ROUNDS=20)
	@$(VENV)/bin/python -m tests.faults --rounds $(ROUNDS)

N ?= 40
SEED ?= 1
mutants: $(DEV) ## how many small faults of the code the tests notice (N=40 SEED=1)
	@$(VENV)/bin/python -m tools.mutants -n $(N) --seed $(SEED)

SEEDS ?= 10000
sim: $(DEV) $(COMPILED) ## the whole system under faults, many times over (SEEDS=10000)
	@$(VENV)/bin/python -m tests.simulation --seeds $(SEEDS)

check: $(DEV) ## format, lint, types, layers, spelling, tidy
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	tests/support/check_javascript.sh
	$(VENV)/bin/codespell *.md docs services schemas deploy tools
	$(VENV)/bin/python -m pytest -q --timeout=300 tests/tidy

.PHONY: docs
docs: $(DEV) ## the documentation as a site, in build/site; strict, and without a network
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "To read and search it: $(VENV)/bin/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

format: $(DEV) ## rewrite the files the way `make check` wants them
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	tests/support/check_javascript.sh --write

oldest: $(DEV) ## a smaller set of tests on Kubernetes 1.20, the oldest that we claim; nightly
	KUBEBUILDER_ASSETS=$$(tests/support/control_plane_build.sh --oldest) APPORTION_REQUIRE_KUBERNETES=1 \
	  $(VENV)/bin/python -m pytest -q tests/contracts/kube tests/integration/kube/test_binding.py \
	  tests/integration/kube/test_watching.py tests/e2e/test_life.py tests/e2e/test_extender.py

.PHONY: controllers
controllers: $(DEV) ## JobSet, LeaderWorkerSet, KubeRay, Volcano and Kueue (the last two by path) with our services; nightly
	@for name in jobset lws kuberay; do \
	  built=$$(tests/support/controllers_build.sh $$name) || [ $$? = 4 ] || exit 1; \
	  export "APPORTION_$$(echo $$name | tr a-z A-Z)=$$built"; \
	done; \
	  $(VENV)/bin/python -m pytest -q -rs tests/e2e/test_real_controllers.py

.PHONY: unused
unused: $(DEV) $(COMPILED) ## what features cost that no pod uses, in instructions (needs valgrind); nightly
	@if command -v valgrind >/dev/null; then $(VENV)/bin/python -m tests.benchmarks.unused; else \
	  echo "the cost of unused features is not measured, because valgrind is missing: apt install valgrind"; fi

digests: $(DEV) ## look up what the tags of base images mean by now, and write their digests (needs skopeo or docker)
	@$(VENV)/bin/python -m tools.pins --refresh
	@$(VENV)/bin/python -m tools.kustomize

KUBELET := services/apportion/agent/kubelet/kubelet.proto
CRI := tests/support/cri/cri.proto
generate: $(DEV) ## schemas, the reference pages, the kubelet's messages, deploy/kubernetes of the chart
	$(VENV)/bin/python -m grpc_tools.protoc -I services --python_out=services $(KUBELET)
	$(VENV)/bin/python -m grpc_tools.protoc -I . --python_out=. $(CRI)
	$(VENV)/bin/python -m tools.events
	$(VENV)/bin/python -m tools.reference
	$(VENV)/bin/python -m tools.openapi
	$(VENV)/bin/python -m tools.compatibility
	$(VENV)/bin/python -m tools.security_page
	$(VENV)/bin/python -m tools.managed_resources
	$(VENV)/bin/python -m tools.nats_configuration
	$(VENV)/bin/python -m tools.kustomize

LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate
lock: ## lock the dependencies anew (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	$(LOCK) $(LOCK_ARGS) requirements/build.in -o requirements/build.txt
	$(LOCK) $(LOCK_ARGS) requirements/audit.in -o requirements/audit.txt
	$(LOCK) $(LOCK_ARGS) pyproject.toml -c requirements/build.txt -o requirements/runtime.txt
	$(LOCK) $(LOCK_ARGS) requirements/build.in pyproject.toml --extra dev \
	  -c requirements/build.txt -c requirements/runtime.txt -o requirements/dev.txt
	$(LOCK) $(LOCK_ARGS) requirements/docs.in -c requirements/dev.txt -o requirements/docs.txt

clean: ## remove what was installed and generated outside git
	rm -rf $(VENV) node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find services schemas tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
	find services -name '*.so' -delete

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "apportion needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there)." \
	    "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv --without-pip $(VENV) && { $(PIP) --version >/dev/null 2>&1 || $@ -m ensurepip >/dev/null 2>&1; } || { \
	  rm -rf $(VENV); \
	  echo "could not make $(VENV): $(PYTHON) has neither pip nor ensurepip. On Debian: apt install python3-venv" >&2; exit 1; }

$(RUNTIME): requirements/build.txt requirements/runtime.txt pyproject.toml | $(VENV)/bin/python
	@echo "installing apportion into $(VENV) (once; under a minute, or minutes on a slow machine or line)"
	@echo "1 of 3: the packages that it needs"
	@$(INSTALL) --require-hashes -r requirements/build.txt -r requirements/runtime.txt
	@echo "2 of 3: itself"
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@$(STALE)
	@echo "3 of 3: its bytecode"
	@$(BYTECODE)
	@touch $@

$(DEV): requirements/dev.txt requirements/docs.txt pyproject.toml | $(VENV)/bin/python
	@echo "installing apportion and its tests into $(VENV) (once; about a minute)"
	@$(INSTALL) --require-hashes -r requirements/dev.txt -r requirements/docs.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@$(STALE)
	@$(BYTECODE)
	@! git rev-parse --git-dir >/dev/null 2>&1 || git config core.hooksPath tools/hooks
	@touch $@ $(RUNTIME)

$(COMPILED): hatch_build.py attribute_caches.h $(shell find services/apportion/core -name '*.py') | $(DEV)
	@echo "compiling the hot path (once; three minutes on two cores)"
	@$(VENV)/bin/python hatch_build.py
	@touch $@
