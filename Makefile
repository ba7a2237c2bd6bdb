# Every target installs what it needs into .venv first. Choose the interpreter with
# `make PYTHON=python3.10 test`. Python 3.12 comes first, except where PyBullet is the reference, which
# has wheels for 3.10 and 3.11 only. A shim of pyenv may be no interpreter, so each is tried.
ifneq ($(filter install test test-full bench,$(MAKECMDGOALS)),)
CANDIDATES := python3.11 python3.10 python3.12 python3
else
CANDIDATES := python3.12 python3.11 python3.10 python3
endif
PYTHON ?= $(shell for python in $(CANDIDATES); do $$python -c 'import venv' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A file of exact versions with hashes to install from; empty: the newest that pyproject.toml allows.
LOCK ?=
# One more than there are cores: tests that wait for a process leave theirs to another.
JOBS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
# The death of a process ends the run and names the test: pytest-xdist may wait forever for one that
# takes its place.
PARALLEL = -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PYTHONS ?= 3.10 3.11 3.12 3.13
OUT ?= runs/demo
# The short ones; each of the others is a command of its own.
BENCHMARKS ?= backends reward_path steps classifier guard batch overhead seconds actor_step

# One thread a process: several of them share the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-full test-fast test-pythons test-lerobot check check-style check-mypy check-pyright \
	bench docs install clean

help:
	@echo "make demo       a classifier and a policy from nothing, with a report (under 5 minutes)"
	@echo "make test       the suite"
	@echo "make test-full  with the full matrices and the long fuzzing"
	@echo "make test-fast  without the slow tests"
	@echo "make test-pythons  make test-fast on every Python from 3.10 to 3.13 that is installed (7 GB each)"
	@echo "make test-lerobot  against LeRobot itself: its recorder, its classifier, our plugin (Python 3.12, FFmpeg; 7 GB)"
	@echo "make check      ruff, mypy, pyright, import-linter"
	@echo "make bench      the short benchmarks, and docs/benchmarks.md with their figures (20 minutes)"
	@echo "make docs       the documentation as a site, build/site/index.html; broken links are errors"
	@echo "make install    only make $(VENV)"
	@echo "make clean      remove virtual environments and caches; runs/ and data/ stay"

install: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python found: install Python 3.12, or pass PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; ok = (3, 10) <= v < (3, 14); print("using Python %d.%d at %s" % (v + (sys.executable,))); sys.exit(0 if ok else "Expected Python 3.10 to 3.13; pass PYTHON=/path/to/python3.12")'
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 12) or print("note: PyBullet has no wheel for this Python. The default environments work; motion=\"dynamics\", camera=\"tiny\" and fidelity=\"article\" need Python 3.10 or 3.11.")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
# With the lock nothing is left to fetch; what it lacks is an error.
	$(if $(LOCK),$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --require-hashes --no-deps -r $(LOCK))
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off $(if $(LOCK),--no-index --no-build-isolation) -e '.[dev]'
# pip compiles all but what is installed with -e, and the tests start hundreds of processes.
	$(BIN)/python -m compileall -q -j 0 actors assets envs training vinoreward tests/support
	@touch $(STAMP)

# Says what does not run where PyBullet, the reference of the hover scene, is not installed.
define NOTE
@$(BIN)/python -c 'import importlib.util; importlib.util.find_spec("pybullet") or print("note: $(VENV) has no PyBullet, so comparisons with it do not run. With them: make $@ VENV=.venv-3.11 PYTHON=python3.11")'
endef

demo: $(STAMP)
	$(BIN)/vinoreward demo --out $(OUT)

test: $(STAMP)
	$(NOTE)
	$(BIN)/python -m pytest $(PARALLEL) --durations 10 -m "not full"

test-full: $(STAMP)
	$(NOTE)
	$(BIN)/python -m pytest $(PARALLEL) --durations 10

test-fast: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) -o faulthandler_timeout=300 -m "not slow and not full"

# Sets $$found to an interpreter of Python $$version; a shim of pyenv may be no interpreter.
define FIND
found=; \
for python in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python \
    $${XDG_DATA_HOME:-$$HOME/.local/share}/uv/python/cpython-$$version*/bin/python; do \
  if $$python -c 'import venv' >/dev/null 2>&1; then found=$$python; break; fi; \
done
endef

# Each interpreter gets a virtual environment of its own, .venv-3.10 and so on.
test-pythons:
	@tried=; failed=; \
	for version in $(PYTHONS); do \
	  $(FIND); \
	  if [ -z "$$found" ]; then echo "Python $$version: not installed, skipped"; continue; fi; \
	  tried="$$tried $$version"; \
	  $(MAKE) --no-print-directory test-fast PYTHON=$$found VENV=.venv-$$version || failed="$$failed $$version"; \
	done; \
	echo "tried:$${tried:- none}; failed:$${failed:- none}"; \
	[ -n "$$tried" ] && [ -z "$$failed" ]

# LeRobot needs Python 3.12 and older libraries than `make install` takes.
test-lerobot: .venv-lerobot/.installed
	.venv-lerobot/bin/python -m pytest -q -s -W ignore tests/lerobot

.venv-lerobot/.installed: pyproject.toml lerobot_plugin/pyproject.toml
	@for version in 3.12 3.13; do $(FIND); [ -z "$$found" ] || break; done; \
	[ -n "$$found" ] || { echo "no Python 3.12 or 3.13 found, which LeRobot needs: install one" >&2; exit 1; }; \
	[ -x .venv-lerobot/bin/python ] || $$found -m venv .venv-lerobot
	.venv-lerobot/bin/python -m pip install --disable-pip-version-check --progress-bar off -e '.[train,lerobot]' \
	  -e ./lerobot_plugin 'lerobot[dataset,transformers-dep]==0.6.*' pytest hypothesis
	@touch $@

check: check-style check-mypy check-pyright

check-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check-mypy: $(STAMP)
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

check-pyright: $(STAMP)
	$(BIN)/basedpyright --pythonpath $(BIN)/python

bench: $(STAMP)
	$(NOTE)
	@failed=; \
	for name in $(BENCHMARKS); do \
	  echo "$$name"; $(BIN)/python benchmarks/$$name.py || failed="$$failed $$name"; \
	done; \
	$(BIN)/python benchmarks/page.py; \
	[ -z "$$failed" ] || { echo "missed a target or could not run:$$failed" >&2; exit 1; }

# The site is made from the sources as text, so it needs none of what `make install` adds.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.docs: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-3.* .venv-lerobot build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -not -path './.git/*' -exec rm -rf {} +
