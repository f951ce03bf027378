# `make demo` and `make test` work in a fresh clone on a machine with Python 3.11, g++ and make.
PYTHON ?= python3.11
TORCH ?= torch==2.13.0
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
CSRC := $(wildcard torch_tpu/csrc/*.cpp torch_tpu/csrc/*.h)

# Idle OpenMP threads must not spin: two test workers share the cores.
export OMP_WAIT_POLICY := PASSIVE
# The demo's model comes from a package; nothing is fetched at run time.
export HF_HUB_OFFLINE := 1
# Where ccache is installed, clones share what they compiled.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.PHONY: help venv build demo test lint format types bench clean

help:
	@echo "make venv    .venv with torch (CPU build), all extras and the built package"
	@echo "make build   compile what changed in torch_tpu/csrc"
	@echo "make demo    sentence embeddings and a training run on device tpu"
	@echo "make test    the test suite          make lint / types    static checks"
	@echo "make bench   all benchmarks          make format          rewrite in the project's style"

venv: $(VENV)/.built

# torch first and by itself: it decides which build of torch everything else is installed beside.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch and the other packages (some minutes, once)"
	$(BIN)/pip install --quiet $(TORCH) "setuptools>=77" wheel ninja "numpy>=2"
	touch $@

$(VENV)/.installed: pyproject.toml setup.py $(VENV)/.torch
	@echo "compiling the C++ core and installing the rest (2 to 10 minutes, once)"
	$(BIN)/pip install --quiet --no-build-isolation --config-settings editable_mode=compat -e ".[demo,test,dev]"
	touch $@

$(VENV)/.built: $(CSRC) $(VENV)/.installed
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.built
	$(BIN)/pip install --quiet --no-build-isolation -e ".[bench]"
	touch $@

build: $(VENV)/.built

demo: $(VENV)/.built
	$(BIN)/torch-tpu demo

test: $(VENV)/.built
	$(BIN)/python -m pytest -n $(WORKERS) $(TESTS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CSRC)

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CSRC)

types: $(VENV)/.installed
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.dispatch
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.convolutions
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.recompiles
	$(BIN)/python -m benchmarks.startup

clean:
	rm -rf build $(VENV) torch_tpu/*.so *.egg-info
