# Two commands set everything up: `make demo` and `make test`. Both build .venv on first use.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo-cache
ORACLE := .venv-oracle

.PHONY: demo test lint oracle clean

$(VENV)/.installed: pyproject.toml .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q autotune_planner  # as pip does for a package that is not editable
	touch $@

# The main job, end to end: on this machine's GPU if there is one of the example's kind, else on the simulated device.
demo: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py $(DEMO)

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The released server's own code judges the planner, on the CPU (docs/oracle.md). Its wheel needs Python 3.11 or newer.
$(ORACLE)/.installed: pyproject.toml .ci/constraints.txt .ci/oracle-constraints.txt
	test -x $(ORACLE)/bin/python || $(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e . pytest hypothesis
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r .ci/oracle-constraints.txt
	touch $@

oracle: $(ORACLE)/.installed
	$(ORACLE)/bin/python -m pytest tests/oracle

clean:
	rm -rf $(VENV) $(ORACLE) $(DEMO) build dist .pytest_cache .ruff_cache .mypy_cache
