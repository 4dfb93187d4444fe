# Every target sets up what it needs, once, into this folder: .venv (no torch), and .venv-model (with torch) for
# `make model` and `make test-hf`.
.PHONY: demo test test-faults test-hf lint format types bench model requirements setup clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODEL_BIN := .venv-model/bin
MODEL_READY := .venv-model/.ready
MODEL_OUT ?= build/model
PIP := pip --disable-pip-version-check --quiet --no-input
comma := ,
BENCHES := $(sort $(wildcard bench/*.py))

# $(call environment,FOLDER,EXTRA): a virtual environment with the pinned versions and this checkout, editable.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ramify needs Python 3.11 or later, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 $@")'
@echo "setting up $(1) ..." >&2
@$(PYTHON) -m venv $(1)
@$(1)/bin/$(PIP) install -c constraints.txt hatchling editables
@$(1)/bin/$(PIP) install -c constraints.txt --no-build-isolation -e '.[$(2)]'
@touch $@
endef

demo: $(READY)
	@$(BIN)/ramify demo

test: $(READY)
	@$(BIN)/python -m pytest -q

test-faults: $(READY)
	@$(BIN)/python -m pytest -q -m slow

test-hf: $(MODEL_READY)
	@$(MODEL_BIN)/python -m pytest -q -m hf

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY)
	@$(BIN)/pyright --project pyproject.toml

requirements: $(READY)
	@$(BIN)/python -m tests.requirements

bench: $(READY)
	@set -e; for script in $(BENCHES); do echo "== $$script"; $(BIN)/python $$script; done

model: $(MODEL_READY)
	@$(MODEL_BIN)/python -m ramify.data.train --out $(MODEL_OUT)

setup: $(READY)

clean:
	rm -rf $(VENV) .venv-model build

$(READY): pyproject.toml constraints.txt
	$(call environment,$(VENV),dev)

$(MODEL_READY): pyproject.toml constraints.txt
	$(call environment,.venv-model,hf$(comma)dev)
