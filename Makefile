# make demo   the answer of the demo scenario (installs the core only)
# make test   everything that must hold: ruff, mypy, pytest
# make lint   ruff and mypy only
# make clean  remove what these made

PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3 python,$(shell \
	$(p) -c 'import sys; print(sys.executable if sys.version_info >= (3, 11) else "")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
DEMO := scenarios/llama-3.1-70b-on-h100.yaml

.PHONY: demo test lint clean

demo: $(VENV)/core.stamp
	@$(BIN)/tfsim run $(DEMO)

test: lint
	$(BIN)/python -m pytest -q -n 2

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis out

$(VENV)/venv.stamp:
	@test -n "$(strip $(PYTHON))" || \
		{ echo "tfsim needs Python 3.11 or newer, and found none: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tfsim needs Python 3.11 or newer: $(PYTHON) is older, or does not run" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

# The stamps hang on pyproject.toml: a second run installs nothing, a changed dependency does.
# Compiling is ours, not pip's: on all cores and without the packages' own tests, it takes half the
# time; a file that does not compile in advance compiles, or fails, when it is imported.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib tfsim || true

$(VENV)/core.stamp: $(VENV)/venv.stamp pyproject.toml
	$(INSTALL) .
	@$(COMPILE)
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(INSTALL) '.[dev]'
	@$(COMPILE)
	@touch $@
