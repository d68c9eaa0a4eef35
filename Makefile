# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check bench campaign format clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/lmd demo

test: .venv/installed
	$(BIN)/pytest -n auto

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

bench: .venv/installed
	$(BIN)/python benchmarks/run.py

# Kills, full disks and hostile files. Options: make campaign CAMPAIGN='--share 0.1'
campaign: .venv/installed
	$(BIN)/python tests/campaign/run.py $(CAMPAIGN)

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist src/*.egg-info
