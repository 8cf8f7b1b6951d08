# Everything goes through run.py, which needs neither make nor an activated environment; these are the same by habit.
PYTHON ?= python3
VENV := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup dev demo serve keys check audit test test-fast test-browser doctor golden bench openapi migration replay lock

help:           ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14
setup:          ## make .venv from the lock
	$(PYTHON) run.py setup
dev:            ## the same with what tests and checks need
	$(PYTHON) run.py setup --dev
demo:           ## one search with every real part, shown and stopped
	$(PYTHON) run.py demo
serve:          ## the service until Ctrl-C
	$(PYTHON) run.py serve
keys:           ## API keys of the running service; ARGS="create --project ci"
	$(PYTHON) run.py keys $(ARGS)
doctor:         ## what could keep the service from running here
	$(PYTHON) run.py doctor
audit:          ## known vulnerabilities of the locked packages; ARGS="--from all.zip" takes in a dump of OSV
	$(PYTHON) run.py audit $(ARGS)
check:          ## ruff, mypy, import walls, advisories, OpenAPI document
	$(PYTHON) run.py check
test:           ## every test, against a real Postgres and Redis; ARGS="-k name"
	$(PYTHON) run.py test $(ARGS)
test-fast: dev ## only the tests that need no services
	$(VENV)/python -m pytest -m "not services" $(ARGS)
test-browser:   ## the dashboard in a real Chromium; ARGS="--pictures docs/images" renews the screenshots
	$(PYTHON) run.py test-browser $(ARGS)
golden: dev ## only the reference cases
	$(VENV)/python -m pytest tests/golden $(ARGS)
bench:          ## every figure of docs/performance.md, beside the peer; ARGS="--only replay"
	$(PYTHON) run.py bench $(ARGS)
openapi: setup  ## write openapi/openapi.json and docs/reference.md from the application
	$(VENV)/python -m app.export_openapi > openapi/openapi.json
	$(VENV)/python -m app.export_reference > docs/reference.md
migration: setup ## a new migration from the tables: NAME=add_thing, DATABASE_URL of a migrated database
	$(VENV)/python -m alembic -c pyproject.toml revision --autogenerate -m "$(NAME)"
replay: setup   ## one replay to standard output: CASE=case.json
	$(VENV)/python -m workers $(CASE)
lock: dev ## resolve the locks anew after a change in pyproject.toml
	$(VENV)/uv pip compile --python-version 3.11 --generate-hashes --only-binary :all: --no-header \
	  --extra perf-data --extra embedded pyproject.toml -o requirements.lock
	$(VENV)/uv pip compile --python-version 3.11 --generate-hashes --only-binary :all: --no-header \
	  -c requirements.lock --extra perf-data --extra embedded --extra predictors --extra otel --extra dev pyproject.toml -o requirements-dev.lock
	sed -n 's/^browser = \["\(.*\)"\].*/\1/p' pyproject.toml | $(VENV)/uv pip compile --python-version 3.11 \
	  --generate-hashes --only-binary :all: --no-header -c requirements-dev.lock - -o requirements-browser.lock
	sed -n 's/^predictors = \["\(.*\)", "\(.*\)"\].*/\1\n\2/p' pyproject.toml | $(VENV)/uv pip compile --python-version 3.11 \
	  --generate-hashes --only-binary :all: --no-header -c requirements-dev.lock - -o requirements-predictors.lock
	sed -n 's/^otel = \["\(.*\)", "\(.*\)"\].*/\1\n\2/p' pyproject.toml | $(VENV)/uv pip compile --python-version 3.11 \
	  --generate-hashes --only-binary :all: --no-header -c requirements-dev.lock - -o requirements-otel.lock
	sed -n '/^vizier = \[/,/^\]/s/^ *"\([^"]*\)".*/\1/p' pyproject.toml | sed 's/google-vizier==/google-vizier[jax]==/' \
	  | $(VENV)/uv pip compile --python-version 3.11 --generate-hashes --only-binary :all: --no-header - -o requirements-vizier.lock
