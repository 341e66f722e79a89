# Every target sets itself up from nothing: it needs Rust, Python 3.10 or newer, and nothing else.
# `uv` and `cargo-nextest` are used where they are installed.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?=
WORKERS ?= 2
CASES ?= 1
MINUTES ?= 10
SEED ?=
ZOO ?=
WHERE ?=
LEAN ?=
AGAIN ?=
OLDEST_TORCH := 2.11.0

UV := $(shell command -v uv 2>/dev/null)
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)
VENV := .venv
OLDEST := .venv-oldest
BIN := $(VENV)/bin
WHEELS := target/wheels

ifdef UV
make_venv = $(UV) venv --quiet $(if $(PYTHON),--python $(PYTHON)) $(1)
install = $(UV) pip install --quiet --python $(1)/bin/python
DEVELOP := $(BIN)/maturin develop --uv
else
make_venv = $(or $(PYTHON),python3) -m venv $(1)
install = $(1)/bin/python -m pip install --quiet
DEVELOP := $(BIN)/maturin develop
endif

# What the extension is made of, and what the wheel is made of. Folders stand for removed files.
RUST := Cargo.toml Cargo.lock $(shell find crates \( -path '*/src' -o -path '*/src/*' -o -name Cargo.toml \))
PACKAGE := docs/reference/errors.md $(shell find python/shardwright \( -name '*.py' -o -name '*.pyi' -o -name '*.json' \))

# Wheels that the package index takes: for every Linux from glibc 2.28 on where there is zig, else for
# those that are not older than this one; refused if it is too new for that.
PORTABLE := $(if $(shell command -v zig 2>/dev/null),manylinux_2_28 --zig,pypi)

# Crates have no Python to link to, but for `py`, which has no tests of its own.
CRATES := --workspace --exclude shardwright-py
ifdef NEXTEST
CARGO_TEST := cargo nextest run $(CRATES) --tests --no-tests pass --status-level fail
else
CARGO_TEST := cargo test --quiet $(CRATES) --tests
endif

# Python keeps what it has compiled, and not among the sources. To import what compiles takes nine seconds
# without, and four with it.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/target/bytecode

# Tests run as many processes as there are cores; each of them is one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

FEW := $(BIN)/python -c "import json, sys; failed = json.load(open('.pytest_cache/v/cache/lastfailed')); print('once more, alone:', *failed, sep='\n  '); sys.exit(len(failed) > 3)"
ALONE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

.PHONY: help docs demo test fuzz mutate mutants zoo quick hosts lint format bench bench-real build edges rust-lint rust-tests python-lint python-tests oldest wheel gpu clean

help: ## says what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build ## a small GPT on 4 local processes, beside the single-device run
	$(BIN)/shardwright demo

test: edges rust-tests python-tests oldest ## everything that must hold

fuzz: build ## random models under random plans, for MINUTES, of a SEED; prints what it finds, made small
	cd tests/python && OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/python -m fuzz --jobs $(WORKERS) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutate: ## faults of 70 kinds planted into programs: which of them the check accepts though they are different; EACH of a kind, from SEED on
	cargo run --release -p shardwright-reference --example mutate -- $(or $(EACH),4) $(or $(SEED),0)

mutants: ## faults in the code of the check itself: which of them no test notices; WHERE names files or functions
	cargo build --quiet --release --manifest-path scripts/mutants/Cargo.toml --target-dir target/mutants/tool
	nice target/mutants/tool/release/mutants $(WHERE)

zoo: $(VENV)/.zoo ## models of other packages through everything, and docs/reference/zoo.md; goes on where it was ended
	cd tests/python && OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/python -m foreign --workers $(or $(if $(filter file,$(origin WORKERS)),,$(WORKERS)),$(shell nproc)) $(ZOO)

# Not `--quiet`: mkdocs would not count its warnings then, and a broken link would pass.
docs: build $(VENV)/.docs ## the documentation as a site, in target/site, with its pictures drawn anew; links that lead nowhere fail
	$(BIN)/python scripts/pictures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

quick: build ## the inner loop: CASES of each test that takes no processes and no time, 0 for all
	$(CARGO_TEST) $(if $(NEXTEST),--profile quick)
	$(PYTEST) -m "not processes and not slow" --cases=$(CASES)

hosts: build ## training on hosts that are namespaces, each with a network of its own: root only, eight minutes
	SHARDWRIGHT_HOSTS=1 $(PYTEST) tests/python/train/test_hosts.py

lint: rust-lint python-lint ## format, clippy, links in docs of Rust, ruff, mypy, stubs

rust-lint:
	cargo fmt --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items

python-lint: build
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy.stubtest shardwright._core

format: $(VENV)/.tools ## rewrites the sources as `lint` wants them, and wraps the pages
	cargo fmt
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .
	$(BIN)/python scripts/wrap_pages.py

bench: build ## times and sizes
	$(BIN)/python benches/run.py

bench-real: build ## steps on this machine, beside what is predicted of them
	$(BIN)/python benches/run.py --only predicted --only predicted-4 $(if $(filter 0,$(shell id -u)),--only shaped)

build: $(VENV)/.built ## the virtual environment with the extension, built anew when Rust changed

edges: ## crates and modules depend on each other in one direction only; every file of Rust is compiled; no count of hard words rises
	$(or $(wildcard $(BIN)/python),$(PYTHON),python3) scripts/check_edges.py
	$(or $(wildcard $(BIN)/python),$(PYTHON),python3) scripts/check_circles.py
	$(or $(wildcard $(BIN)/python),$(PYTHON),python3) scripts/check_modules.py
	$(or $(wildcard $(BIN)/python),$(PYTHON),python3) scripts/check_words.py

rust-tests:
	$(CARGO_TEST)
	cargo test --quiet $(CRATES) --doc

# With AGAIN, failures run once more, alone, if they are three at most: a test that measures or waits may fail since the
# machine is busy. What is wrong fails again. A run that came to no end (any status but 1) has failed.
python-tests: build
	$(PYTEST) $(if $(AGAIN),|| { [ $$? = 1 ] && $(FEW) && $(ALONE); })

# Nothing is there but what the wheel itself asks for, and pytest.
oldest: $(OLDEST)/.built ## the sample of the tests on the oldest supported torch, from the wheel
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal -m oldest

wheel: $(WHEELS)/.built ## the wheel, in target/wheels

gpu: wheel ## what a GPU shows of it, in target/gpu; without one, how to run that elsewhere
	@if $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then \
	  rm -rf target/site && $(BIN)/python -m zipfile -e $(WHEELS)/*.whl target/site \
	  && PYTHONPATH=target/site $(BIN)/python scripts/gpu/run.py --out target/gpu; \
	else \
	  echo "There is no GPU here. Where there is one, with scripts/gpu and target/wheels of this folder:"; \
	  echo "pip install --no-index --no-deps --target site $(WHEELS)/*.whl && PYTHONPATH=site python3 scripts/gpu/run.py --out DIR"; \
	fi

clean: ## removes all that was built
	cargo clean
	rm -rf $(VENV) $(OLDEST) python/shardwright/_core*.so

$(VENV)/bin/python $(OLDEST)/bin/python: %/bin/python:
	$(call make_venv,$*)

$(VENV)/.tools: pyproject.toml | $(VENV)/bin/python
	$(call install,$(VENV)) "maturin>=1.9,<2" "ruff>=0.9"
	@touch $@

$(VENV)/.built: $(RUST) pyproject.toml | $(VENV)/.tools
	@command -v cargo >/dev/null || { echo "Rust is needed: see https://rustup.rs" >&2; exit 1; }
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(DEVELOP) --quiet --release --extras test
	@touch $@

$(VENV)/.docs: | $(BIN)/python
	$(call install,$(VENV)) "mkdocs-material>=9.6,<10"
	@touch $@

# The packages whose models the zoo tries.
$(VENV)/.zoo: $(VENV)/.built
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(DEVELOP) --quiet --release --extras test,zoo
	@touch $@

$(WHEELS)/.built: $(VENV)/.built $(PACKAGE)
	rm -rf $(WHEELS)
	$(BIN)/maturin build --quiet --release --compatibility $(PORTABLE) --interpreter $(BIN)/python --out $(WHEELS)
	@touch $@

# With LEAN, what has served goes before more comes: a small disk holds one torch at a time.
$(OLDEST)/.built: $(WHEELS)/.built | $(OLDEST)/bin/python
	$(if $(LEAN),rm -rf $(VENV) target/debug target/release)
	$(call install,$(OLDEST)) "torch==$(OLDEST_TORCH)" pytest pytest-xdist $(WHEELS)/*.whl
	$(call install,$(OLDEST)) --no-deps $(if $(UV),--reinstall,--force-reinstall) $(WHEELS)/*.whl
	@touch $@
