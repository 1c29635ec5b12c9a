# Everything a contributor types. `make` alone lists it.

PYTHON ?= python3
VENV ?= .venv
DJANGO ?=
CELERY ?=
ARGS ?=
PORT ?= 8000
CARRIER ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXAMPLE_STAMP := $(VENV)/.installed-example
CELERY_STAMP := $(VENV)/.installed-example-celery
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WITH_POSTGRES := $(BIN)/python scripts/with_postgres.py
TEST_WITH_POSTGRES := $(WITH_POSTGRES) --home .postgres/tests --not-durable
WITH_RABBITMQ := $(BIN)/python scripts/with_rabbitmq.py
MANAGE := $(BIN)/python example_project/manage.py

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test coverage check lint format types contract guards lineage docs migrations wheel messages pictures bench bench-peers bench-check walk chaos soak build clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create the virtual environment (PYTHON=python3.13 VENV=.venv-6.1 DJANGO=6.1 CELERY=5.5 choose another)

demo: $(if $(CARRIER),$(CELERY_STAMP),$(EXAMPLE_STAMP)) ## Sell 412 times and e-mail the receipts (CARRIER=celery: Celery's workers do that)
	@CARRIER=$(CARRIER) $(if $(CARRIER),$(WITH_RABBITMQ)) $(WITH_POSTGRES) --database shop $(MANAGE) demo

serve: $(EXAMPLE_STAMP) ## Run the shop, its admin and a worker until Ctrl-C (PORT=8001 chooses another)
	@$(WITH_POSTGRES) --database shop $(MANAGE) serve --port $(PORT)

test: setup ## Run the tests (ARGS="-k claim" chooses some of them)
	PYTHONDONTWRITEBYTECODE= $(TEST_WITH_POSTGRES) $(BIN)/pytest -n 3 --dist worksteal $(ARGS)

coverage: setup ## Run the tests, and report which code of the package they do not run (from Python 3.12 on)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { echo '$(NOT_3_11)'; exit 1; }
	rm -rf .coverage
	$(TEST_WITH_POSTGRES) $(BIN)/coverage run -m pytest -n 3 --dist worksteal $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: setup ## Check style, formatting, the layers of imports, and the rules of scripts/lint.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python scripts/lint.py

format: setup ## Repair style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## Check the types
	$(BIN)/mypy

docs: setup ## Build the documentation into docs/_build
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

migrations: setup ## Check that no migration is missing
	$(WITH_POSTGRES) $(MANAGE) makemigrations --check --dry-run

wheel: build ## Try the wheel in a clean environment
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PYTHON) -m venv "$$folder" \
		&& "$$folder/bin/pip" install --quiet --disable-pip-version-check dist/*.whl 'psycopg[binary]' \
		&& $(WITH_POSTGRES) --database wheel "$$folder/bin/python" scripts/try_wheel.py

messages: setup ## Extract the texts of the admin for translators, and compile what they wrote (needs GNU gettext)
	@for tool in xgettext msgmerge msgfmt; do command -v $$tool >/dev/null || { echo '$(NO_GETTEXT)'; exit 1; }; done
	@ls -d django_skipqueue/locale/*/ >/dev/null 2>&1 || { echo '$(NO_LANGUAGE)'; exit 1; }
	cd django_skipqueue && '$(abspath $(BIN))/django-admin' makemessages --all --no-obsolete --no-wrap --add-location=file
	cd django_skipqueue && '$(abspath $(BIN))/django-admin' compilemessages

check: lint types docs migrations demo wheel ## Check all that a change must pass beside the tests

contract: setup ## Write what users rely on, and every statement of SQL, into files, for git to show what a change alters
	SKIPQUEUE_WRITE_CONTRACT=1 $(WITH_POSTGRES) $(BIN)/pytest tests/contract tests/queue/test_golden.py $(ARGS)

guards: setup ## Take each guard of correctness out, and see the tests fail (ARGS="claim settle" takes some)
	PYTHONDONTWRITEBYTECODE= SKIPQUEUE_SLOW=1 $(TEST_WITH_POSTGRES) $(BIN)/python -m tests.guards $(ARGS)

lineage: setup ## Check that no test has been lost: it is there, has another name, or went for a reason
	$(WITH_POSTGRES) $(BIN)/python scripts/check_lineage.py

pictures: setup ## Take the pictures of the admin that the documentation shows, into docs/_static
	SKIPQUEUE_PICTURES=docs/_static $(WITH_POSTGRES) $(BIN)/pytest tests/console/admin/test_pictures.py tests/parts/*/admin/test_pictures.py $(ARGS)

bench: setup ## Measure (ARGS="--help" says what can be chosen)
	$(WITH_POSTGRES) --database benchmarks $(BIN)/python -m benchmarks $(ARGS)

bench-peers: setup ## Measure other job queues beside ours, each in an environment of its own below .peers/
	$(WITH_POSTGRES) --database benchmarks $(BIN)/python -m benchmarks.peers $(ARGS)

walk: setup ## Print the way of a job through the package (ARGS=--limit: of a job that has a limit)
	$(WITH_POSTGRES) --database walk $(BIN)/python scripts/walk.py $(ARGS)

bench-check: setup ## Compare ratios with benchmarks/baseline.json (ARGS=--write makes a new one)
	$(WITH_POSTGRES) --database benchmarks $(BIN)/python -m benchmarks.check $(ARGS)

chaos: setup ## Break everything under load for ten minutes (ARGS="mixed --seconds 5" does it in one)
	$(BIN)/python -m tests.chaos $(if $(ARGS),$(ARGS),--markdown docs/explanation/reliability.md)

soak: setup ## Run a million jobs through one worker: neither it nor its table may grow (takes minutes)
	SKIPQUEUE_SOAK_JOBS=1000000 $(WITH_POSTGRES) $(BIN)/pytest tests/test_soak.py $(ARGS)

build: setup ## Build the sdist and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build

clean: ## Remove everything that these commands made
	rm -rf $(VENV) .peers .postgres build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf example_project/mailbox example_project/worker.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@echo 'Installing what tests, documentation and benchmarks need into $(VENV): a minute or two.'
	@$(call install,dev)
	@touch $@ $(EXAMPLE_STAMP) $(CELERY_STAMP)

$(EXAMPLE_STAMP): pyproject.toml
	@echo 'Installing what the example needs into $(VENV): about a minute, once.'
	@$(call install,example)
	@touch $@

$(CELERY_STAMP): pyproject.toml
	@echo 'Installing what the example needs, and Celery, into $(VENV): about a minute, once.'
	@$(call install,example-celery)
	@touch $@ $(EXAMPLE_STAMP)

# In Python 3.11, threads that are traced stand still as long as a timeout is on its way into a task that sleeps.
NOT_3_11 := Coverage needs Python 3.12 or newer: make coverage PYTHON=python3.13 VENV=.venv-3.13

NO_GETTEXT := The tools of GNU gettext are needed: install the package "gettext" (apt, dnf, brew), then try again.

NO_LANGUAGE := There is no language yet: mkdir -p django_skipqueue/locale/fr/LC_MESSAGES, then try again.

# Make the environment, with one of the dependency groups of pyproject.toml, which pip knows from 25.1 on.
define install
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo 'Python 3.11 or newer is needed: make setup PYTHON=/path/to/python3.11'; exit 1; }; \
$(PYTHON) -m venv $(VENV) \
	&& $(PIP) 'pip>=25.1' && $(PIP) -e . --group $(1) $(if $(DJANGO),'django~=$(DJANGO).0') \
		$(if $(CELERY),'celery~=$(CELERY).0')
endef
