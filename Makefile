# `make demo` and `make test` do everything on a fresh machine: both create .venv once and reuse it.
# Python 3.10 or newer; the package index of your pip settings is the only network they need.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SHARED := -n 2 --dist loadfile --no-loadscope-reorder  # two processes, a test file stays in one

.PHONY: help setup demo demo-pretrained demo-seeds data smoke bench test test-all mutation lint clean

help:
	@echo "make demo        nano model -> SFT -> GRPO -> result table, on embedded defaults (some 15 minutes on 2 cores)"
	@echo "make demo-seeds  the same for three training seeds, beside SFT trained longer (about an hour)"
	@echo "make demo-pretrained  the same for a pretrained model of 135 M parameters, with LoRA (TWO HOURS on 2 cores)"
	@echo "make data        cards and anchors -> gated, golden, SFT and GRPO sets of a real model, offline (some 5 minutes)"
	@echo "make smoke       50 GRPO steps: shows that the pipeline works, no result"
	@echo "make bench       speed: ratios measured in one run, written to benchmarks/README.md (twenty minutes on 2 quiet cores)"
	@echo "make test        units and one short end-to-end path      make test-all  everything, mutation run included"
	@echo "make lint        ruff, shellcheck, mypy                   make clean     removes build/ and runs/"

$(READY): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) is older than Python 3.10; name a newer one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@# a .venv with vllm was made by hand for GPUs: the CPU's versions would break it
	@if compgen -G '$(VENV)/lib/python*/site-packages/vllm' >/dev/null; then \
	  pins=constraints-gpu.txt extras=dev,bge,pretrained,gpu; else pins=constraints.txt extras=dev,bge,pretrained; fi; \
	echo "setting up $(VENV) with $$pins (once; a few minutes)"; set -x; \
	$(PYTHON) -m venv $(VENV) && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c "$$pins" -e ".[$$extras]"
	@touch $@

setup: $(READY)

demo: $(READY)
	$(BIN)/python scripts/demo/run_demo.py

demo-pretrained: $(READY)
	$(BIN)/python scripts/demo/run_pretrained.py

demo-seeds: $(READY)
	$(BIN)/python scripts/demo/run_seeds.py

data: $(READY)
	$(BIN)/python scripts/data/make_data.py

smoke: $(READY)
	$(BIN)/python scripts/demo/smoke.py

bench: $(READY)
	$(BIN)/python benchmarks/run_all.py

test: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(SHARED)

test-all: $(READY)
	$(BIN)/python -m pytest $(SHARED)
	$(MAKE) mutation

mutation: $(READY)
	$(BIN)/python tests/mutation/run_mutation.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/shellcheck *.sh scripts/*/*.sh .ci/run
	$(BIN)/mypy reward swift_plugin

clean:
	rm -rf build runs
