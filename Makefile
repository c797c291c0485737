# One environment for everything: .venv. `make test` makes it, checks and tests; `make demo` makes it and shows.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LLM_STAMP := $(VENV)/.installed-llm
DEMO_STATE ?= demo-state
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export HF_HUB_OFFLINE = 1
export RAY_USAGE_STATS_ENABLED = 0

.PHONY: install llm-cpu check format lint types imports test test-long demo clean

install: $(STAMP)

# torch first and alone: anything that lets pip choose it may bring a build for GPUs of several GB.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "raygam needs Python 3.11 or newer; name one with make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet -c constraints.txt -e ".[cpu,dev]"
	@touch $(STAMP)

# vLLM's CPU build: the list is whole, so that nothing is resolved, and what it imports is compiled by whoever imports it.
llm-cpu: $(LLM_STAMP)

$(LLM_STAMP): $(STAMP) requirements-llm-cpu.txt
	$(BIN)/pip install --quiet --no-deps --no-compile -r requirements-llm-cpu.txt
	@touch $(LLM_STAMP)

check: format lint types imports

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

# mypy takes package names from folders: the link gives the checkout the name that it is imported by.
types: $(STAMP)
	@mkdir -p build/typing && ln -sfn ../.. build/typing/raygam
	MYPYPATH=build/typing $(BIN)/mypy -m raygam.__main__ -p raygam.memory -p raygam.adapters -p raygam.pipeline -p raygam.actors -p raygam.serving
	MYPYPATH=build/typing $(BIN)/mypy --explicit-package-bases benchmarks tests examples

imports: $(STAMP)
	$(BIN)/lint-imports

# The suite of vLLM needs it only where the run must not skip that suite.
ifneq (,$(findstring llm,$(RAYGAM_TEST_REQUIRE)))
test: $(LLM_STAMP)
endif

test: check
	$(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS)

test-long: $(STAMP)
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

demo: $(STAMP)
	@$(BIN)/python examples/demo.py --state $(DEMO_STATE)

clean:
	rm -rf $(VENV) build $(DEMO_STATE) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
