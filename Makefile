# Two commands for a fresh machine:  make demo   make test
# TORCH_INDEX names a package index for torch, where pip's own would bring the large CUDA build.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q

.PHONY: demo test paper lint types imports unit bench docs engine page clean

demo: $(VENV)/installed engine
	$(BIN)/lcrbnn demo

test: lint types imports unit

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.check_names lcrbnn bench tools paper paper/tests tests --max 0.5

types: $(VENV)/installed-dev
	$(BIN)/mypy

imports: $(VENV)/installed-dev
	$(BIN)/lint-imports

unit: $(VENV)/installed-dev engine
	$(BIN)/pytest -n 2

paper: $(VENV)/installed-dev engine  # the paper's evidence: tables and figures in documents equal their records
	$(BIN)/python -m paper check
	$(BIN)/pytest -n 2 paper/tests

engine: $(VENV)/installed  # without a C++ compiler cmake only warns, and everything but the engine works
	$(BIN)/cmake -S . -B build --log-level=WARNING
	$(BIN)/cmake --build build --parallel 2 -- -s

page: $(VENV)/installed  # the engine as WebAssembly and a page that uses it, build/page
	$(BIN)/python -m tools.native.wasm_page

bench: $(VENV)/installed
	$(BIN)/python -m bench.training.lcr_step_cost

# The example uses a generated image and no frost photos, so it contains no image of a data set.
EXAMPLE = none=paper/results/cifar10-double/none lcr=paper/results/cifar10-double/default --records paper/results --data-folder none \
	-o docs/example-report.html

docs: $(VENV)/installed  # the figures of docs/, from the tables, and the example of a report
	$(BIN)/lcrbnn methods --curves docs/methods.svg
	$(BIN)/python -m tools.methods_page docs/methods.md
	$(BIN)/lcrbnn report $(EXAMPLE)

$(VENV)/torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	$(PIP) install cmake --config-settings=wheel.cmake=false -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install --config-settings=wheel.cmake=false -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
