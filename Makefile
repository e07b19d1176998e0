# Everything runs in .venv, made here from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN = .venv/bin
export PYTHONHASHSEED = 0

.PHONY: setup demo test test-all check bench accuracy figures format docs dist reprove trust fuzz clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/tensorveil demo --out demo-output

test: setup
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n 2

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the generated pages, then the site in docs/_build/html: warnings are errors; examples that have not changed are not run
# again; without a network. The tools of the site are installed by this target alone.
docs: setup .venv/.docs-ready
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

.venv/.docs-ready: pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	@touch $@

# wheel and source distribution in dist/, installed in a fresh environment and tried outside of the repository
dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	PYTHON=$(PYTHON) .ci/try_wheel dist/*.whl

# for every mechanism, the modules that must be trusted, with their lines
trust: setup
	$(BIN)/python docs/trust.py

# whole runs of random plans on PAIRS random pairs of neighbouring data sets (2,000: about three minutes); SEED=1 for others
PAIRS ?= 2000
SEED ?= 0
fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m privacy.replay_fuzz --pairs $(PAIRS) --seed $(SEED)

# after a proof was read again beside its changed function: make reprove NAME=statistic-values
reprove: setup
	$(BIN)/python docs/proofs/lock.py $(NAME)

# make figures          every figure with the paper's number of runs (under an hour on two cores)
# make figures QUICK=1  the same with few runs (under five minutes)
FIGURES = figure1 figure2 figure3 clipping proven_vs_published objective
figures: setup
	@for figure in $(FIGURES); do $(BIN)/python experiments/$$figure.py $(if $(QUICK),--quick) || exit 1; done

# make bench          speed and size, against the C yardstick and the peers that are installed, then the main job from file
#                     to folder with 10^4 to 10^8 rows (hours)
# make bench QUICK=1  without peers, and without 10^7 and 10^8 rows of the main job
bench: setup
	$(BIN)/python benchmarks/speed.py $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/main_job.py $(if $(QUICK),--quick)

# make accuracy          error against epsilon on all data, five seeds per row (hours; what is there is not run again)
# make accuracy QUICK=1  MovieLens 100K under value, one row per other data set (under 25 minutes)
# real data: the folder that TENSORVEIL_DATA names
accuracy: setup
	$(BIN)/python benchmarks/accuracy.py $(if $(QUICK),--quick)

clean:
	rm -rf .venv demo-output .mypy_cache .pytest_cache .ruff_cache docs/_build docs/gallery docs/api
