# A checkout needs only Python 3.11, 3.12 or 3.13, and make. `make` alone lists the targets.
#
#   PYTHON=python3.12             the Python to make the environment with
#   TORCH_INDEX_URL=https://…     the index for torch (docs/deploy.md); https://download.pytorch.org/whl/cpu has small builds
#   PIP_ARGS="--index-url …"      further options for pip, and for uv, which installs what pip would

.DEFAULT_GOAL := help
SHELL := /bin/sh
export PIP_ARGS TORCH_INDEX_URL
# Images and shells often set it: then each of a thousand processes compiles what it imports
unexport PYTHONDONTWRITEBYTECODE

python := .venv/bin/python
packages := scamp api benchmarks estimators placement scamp_service workloads
javascript := api/static tests/api/javascript
typescript := typescript@5.9.3
tsc := npx --yes --fetch-retries=0 --package=$(typescript) tsc
pytest = $(python) -m pytest --hypothesis-profile=ci -n 3 --max-worker-restart=0 --dist loadfile --no-loadscope-reorder \
	--durations=25 --durations-min=5
inputs := pyproject.toml constraints.txt deploy/environment.py
# An environment is made again if its Python is gone or is not the PYTHON that was asked for, or if the checkout has moved
real := -c 'import os, sys; print(os.path.realpath(sys.executable))'
broken := $(shell { [ -x $(python) ] && grep -qF -e "-m venv $$(pwd -P)/.venv" .venv/pyvenv.cfg && \
	{ [ -z "$(PYTHON)" ] || [ "$$($(PYTHON) $(real))" = "$$($(python) $(real))" ]; }; } || echo .venv/.absent)

# The first Python on the PATH that will do; looked for only when there is something to set up
find_python = for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then echo "$$candidate"; exit; fi; done
no_python = ScaMP needs Python 3.11, 3.12 or 3.13, which $(or $(PYTHON),the PATH) does not offer. Install it (Debian, Ubuntu: \
	apt-get install python3 python3-venv; macOS: brew install python@3.12) or name one: make PYTHON=/path/to/python3.12
environment = @python=$$($(find_python)); \
	if [ -z "$$python" ]; then echo "$(strip $(no_python))" >&2; exit 1; fi; "$$python" deploy/environment.py

.PHONY: help setup run test test-all ci check static lint types floors pytest rest third soak bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: .venv/.ready ## make .venv with everything that ScaMP needs to run
	@echo ".venv is ready: make run, or .venv/bin/scamp --help"

run: .venv/.ready ## set up, start ScaMP, run the demo study, serve the dashboard until Ctrl-C
	@exec $(python) -m scamp_service demo

test: check ## set up with the development tools, then run all checks, and a test of everything

test-all: test rest ## run test, then all other tests

ci: test third ## run test, then today's third of all other tests: what CI runs

check: .venv/.ready-dev ## run static and pytest side by side
	@$(MAKE) --no-print-directory -j 2 static pytest

static: .venv/.ready-dev ## run the next three targets
	@$(MAKE) --no-print-directory --output-sync=target lint types floors

lint: .venv/.ready-dev ## ruff, and oxlint and oxfmt for the dashboard: style and format
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	@! grep -rnE '^ *"""(What|Of|The same) ' --include='*.py' $(packages) || { echo 'say what the thing is or does'; false; }
	.venv/bin/oxlint $(javascript)
	.venv/bin/oxfmt --check $(javascript)

types: .venv/.ready-dev ## mypy, strict except for tests and benchmarks; tsc for the dashboard, if npx can fetch it
	$(python) -m mypy
	$(python) -m mypy deploy/environment.py
	@if $(tsc) --version >/dev/null 2>&1; then $(tsc) --project api/jsconfig.json; \
	else echo "npx (of npm) is not there, or cannot fetch $(typescript): the dashboard's types are not checked"; fi

floors: .venv/.ready-dev ## import-linter: imports point down only
	$(python) .venv/bin/lint-imports

pytest: .venv/.ready-dev ## run the tests that are quick, and a sample of the others (CONTRIBUTING.md)
	MAKEFLAGS= $(pytest) -m "quick and not soak"

rest: .venv/.ready-dev ## run the tests that pytest leaves out
	MAKEFLAGS= $(pytest) -m "not quick and not soak"

third: ## run a third of these: today's, or TESTS_PART=2/3
	@part=$${TESTS_PART:-$$(expr $$(date +%s) / 86400 % 3 + 1)/3}; echo "TESTS_PART=$$part"; \
	TESTS_PART=$$part $(MAKE) --no-print-directory rest

soak: .venv/.ready-dev ## run the tests that take long: many seeds, many kills, every combination
	$(python) -m pytest --hypothesis-profile=ci -m soak -n 2 --dist loadfile --durations=25 --durations-min=5

bench: .venv/.ready ## run every benchmark with --quick
	@for file in $(filter-out benchmarks/__init__.py,$(wildcard benchmarks/*.py)); do \
		name=$$(basename "$$file" .py); echo "benchmarks.$$name"; \
		$(python) -m "benchmarks.$$name" --quick || exit 1; done

lock: ## write constraints.txt with the newest versions that pyproject.toml allows
	$(environment) lock

clean: ## remove .venv and caches, but keep studies (~/.scamp)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready: $(inputs) $(broken)
	$(environment) setup

.venv/.ready-dev: $(inputs) $(broken)
	$(environment) setup --dev

.venv/.absent:
