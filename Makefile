# A thin front end of Meson (meson.build). Every target also does the set-up that it needs.
#
#   make demo [RANKS=2] [BACKEND=shm] [HOOK=allreduce] [DATA=folder]
#   make demo BACKEND=mpi [MPI=openmpi|mpich]
#   make test [SUITE=unit] [FILTER=text] [SEED=1]
#   make test-all [PART=rest]
#   make test-parity
#   make test-torch
#   make test-mutants
#   make test-arm64
#   make wheel
#   make test-wheel
#   make deb
#   make test-deb
#   make release
#   make predict
#   make simulate [SIMULATE='--ranks 4096']

BUILD ?= build
RANKS ?= 2
BACKEND ?=
MPI ?= openmpi
HOOK ?=
DATA ?=
PREFIX ?= /usr/local
SUITE ?=
FILTER ?=
SEED ?= 1
JOBS ?= 2
MESON_OPTIONS ?=

WEFT := $(BUILD)/tools/weft
# The launcher of the demo's ranks. Open MPI's mpirun is allowed to run as root, and with more ranks than cores.
MPIRUN = env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
  $(or $(shell command -v mpirun.$(MPI)),mpirun) -n $(RANKS)
LAUNCH = $(if $(filter mpi shm+mpi,$(BACKEND)),$(MPIRUN),$(WEFT) run -n $(RANKS) --prefix others --)

.DEFAULT_GOAL := help
.PHONY: schedules setup build demo test test-all test-parity test-torch test-mutants test-arm64 optimised wheel test-wheel deb test-deb test-recipes release bench gpu bench-peers predict simulate reference docs lint install clean help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: RANKS=$(RANKS) BACKEND= HOOK= DATA= SUITE= FILTER= SEED=$(SEED) BUILD=$(BUILD) PREFIX=$(PREFIX) MESON_OPTIONS="

setup: ## install what the build needs (apt), or print the command that does (dnf, pacman, conda)
	@tools/setup.sh build

.setup/build: tools/setup.sh
	@tools/setup.sh build

.setup/lint: tools/setup.sh
	@tools/setup.sh lint

.setup/parity: tools/setup.sh
	@tools/setup.sh parity

.setup/deb: tools/setup.sh
	@tools/setup.sh deb

$(BUILD)/build.ninja: | .setup/build
	meson setup $(BUILD) --prefix $(abspath $(PREFIX)) $(MESON_OPTIONS)

build: $(BUILD)/build.ninja ## compile everything
	@ninja -C $(BUILD) -j $(JOBS)

demo: $(BUILD)/build.ninja ## train on Fashion-MNIST with RANKS local processes
	@ninja -C $(BUILD) -j $(JOBS) demo $(if $(BACKEND),modules)
	@$(LAUNCH) $(BUILD)/examples/train_fashion \
	  $(if $(BACKEND),--backend $(BACKEND)) $(if $(HOOK),--hook '$(HOOK)') $(if $(DATA),--data $(DATA))

# Compiles only what these tests need; nothing if a suite is unknown. Random tests draw from SEED.
TESTS = --suite '$(SUITE)' --part $(or $(PART),test) --seed '$(SEED)'
test: $(BUILD)/build.ninja ## run the suites unit, capi, conformance, abi and sandbox, or SUITE; the last line counts test cases
	@targets=$$(python3 tests/run.py $(BUILD) $(TESTS) --targets) && \
	  { [ -z "$$targets" ] || ninja -C $(BUILD) -j $(JOBS) $$targets; }
	@python3 tests/run.py $(BUILD) --jobs $(JOBS) $(TESTS) --filter '$(FILTER)' $(TEST_OPTIONS)

# PART=rest leaves out what `make test` runs. ALL_CASES= runs samples, as `make test` does.
ALL_CASES = --all-cases
ALL_TESTS = --suite '$(SUITE)' --part $(or $(PART),all) $(ALL_CASES) --seed '$(SEED)'
test-all: $(BUILD)/build.ninja ## run all tests with all their cases
	@python3 tests/run.py $(BUILD) $(ALL_TESTS) --list >/dev/null
	@ninja -C $(BUILD) -j $(JOBS)
	@python3 tests/run.py $(BUILD) --jobs $(JOBS) $(ALL_TESTS) --filter '$(FILTER)' $(TEST_OPTIONS)

test-parity: build | .setup/parity ## gradients beside PyTorch DDP's, model by model (installs PyTorch in BUILD)
	@python3 tests/parity/run.py $(BUILD)

test-torch: build | .setup/parity ## PyTorch's own distributed suite over Weft, compared with Gloo (installs PyTorch in BUILD)
	@python3 tests/torch/run_ddp.py $(BUILD)
	@python3 tests/torch/run.py $(BUILD)
	@python3 tests/torch/run_training.py $(BUILD)

# Mutants are compiled one source at a time, in a build of their own.
$(BUILD)-mutants/build.ninja: | .setup/build
	meson setup $(BUILD)-mutants $(MESON_OPTIONS) -Dgrouped=false

test-mutants: $(BUILD)-mutants/build.ninja ## break the library on purpose: the tests must notice each time (an hour)
	@python3 tests/mutants/run.py $(BUILD)-mutants --jobs $(JOBS) $(MUTANTS)

# A cross-compiler's build, whose programs qemu emulates. They are slow, so time limits are longer. With this optimisation
# gcc 12 warns about its own containers.
ARM64 = $(BUILD)-arm64
ON_ARM64 = tools/arm64.sh $(BUILD)/arm64/root
.setup/arm64: tools/setup.sh
	@tools/setup.sh arm64

$(ARM64)/build.ninja: | .setup/arm64
	@tools/arm64_root.py $(BUILD)
	$(ON_ARM64) meson setup $(ARM64) --cross-file $(BUILD)/arm64/cross.ini --cross-file $(BUILD)/arm64/emulated.ini \
	  -Doptimization=1 -Dcpp_args="-Wno-free-nonheap-object -DWEFT_TEST_EMULATED" -Ducx=disabled -Dmpi=disabled -Dcuda=disabled \
	  -Dnccl=disabled -Djax=disabled -Dbench=false -Dexamples=false $(MESON_OPTIONS)

ARM64_TESTS = $(ARM64) --suite '$(or $(SUITE),unit capi conformance python)' --seed '$(SEED)'
test-arm64: $(ARM64)/build.ninja ## compile for aarch64 and run the suites unit, capi, conformance and python under qemu
	@targets=$$(python3 tests/run.py $(ARM64_TESTS) --targets) && \
	  { [ -z "$$targets" ] || $(ON_ARM64) ninja -C $(ARM64) -j $(JOBS) $$targets; }
	@$(ON_ARM64) python3 tests/run.py $(ARM64_TESTS) --jobs $(JOBS) --filter '$(FILTER)' --timeout-multiplier 4 $(TEST_OPTIONS)

bench: build ## measure the collectives and a gradient step on this machine
	@$(WEFT) bench all_reduce --ranks $(RANKS) $(if $(BACKEND),--backend $(BACKEND))

gpu: $(BUILD)/build.ninja ## test and measure the CUDA kernels on a GPU; without one says so
	@tests/gpu/run.sh $(BUILD)

bench-peers: build ## Weft beside Open MPI, MPICH, Intel MPI, oneCCL and PyTorch, and beside its targets
	@python3 bench/peers.py $(BUILD) --ranks $(RANKS)

schedules: $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(JOBS) bench/weft-schedules

predict: schedules ## predict the efficiency of training steps from 8 to 100,000 ranks, in BUILD/predict
	@python3 bench/predict.py $(BUILD)

.setup/simulate: tools/setup.sh
	@tools/setup.sh simulate

SIMULATE =
simulate: schedules .setup/simulate ## replay the collectives' schedules in SimGrid at 1,024 ranks, beside the model
	@python3 bench/simulate.py $(BUILD) $(SIMULATE)

reference: $(BUILD)/build.ninja .setup/lint ## the C ABI's reference, in $(BUILD)/reference/index.html
	@python3 tools/lint.py $(BUILD) --only reference

docs: .setup/lint ## the documents as a site, in $(BUILD)/site/index.html
	@mkdir -p $(BUILD)
	@python3 tools/docs_site/build.py $(BUILD)

lint: $(BUILD)/build.ninja .setup/lint ## formatting, clang-tidy, headers alone, types of python, layers, files' sizes
	@python3 tools/lint.py $(BUILD) --jobs $(JOBS) $(LINT_OPTIONS)

OPTIMISED = $(BUILD)-optimised
optimised: | .setup/build ## compile what `make install` installs: optimised, without assertions and tests
	@[ -e $(OPTIMISED)/build.ninja ] || meson setup $(OPTIMISED) --buildtype release -Doptimization=2 -Dtests=false \
	  -Dexamples=false $(MESON_OPTIONS)
	@meson configure $(OPTIMISED) --prefix $(abspath $(PREFIX))
	@ninja -C $(OPTIMISED) -j $(JOBS)

install: optimised ## install library, headers, pkg-config file and tool, stripped, under PREFIX
	@meson install -C $(OPTIMISED) --strip

wheel: | .setup/build .setup/parity ## the Python package with the library in it, and its sdist, in dist/
	@python3 tools/wheel.py $(BUILD) --jobs $(JOBS)

# Builds the wheel a second time in another folder, and installs it where only Python is.
test-wheel: wheel ## install the wheel in empty environments and reduce over it; the last line counts test cases
	@python3 tests/wheel/test_wheel.py $(BUILD) dist $(JOBS)

deb: | .setup/deb ## the Debian packages of the last commit, in dist/
	@python3 tools/deb.py --jobs $(JOBS)

# A second build in another folder must have the same bytes. DEB_TWICE= leaves it out.
DEB_TWICE = --twice
test-deb: deb ## install the Debian packages in a root folder of their own and use them; the last line counts test cases
	@python3 tests/deb/test_deb.py $(BUILD) dist $(JOBS) $(DEB_TWICE) '$(or $(FILTER),*)'

test-recipes: | .setup/build .setup/parity ## try packaging/: conan create, and the checks of the other recipes
	@python3 tests/recipes/test_recipes.py $(BUILD) '$(or $(FILTER),*)'

release: | .setup/build .setup/parity .setup/deb ## source archive, wheel and Debian packages with SHA256SUMS, in dist/
	@python3 tools/release.py $(BUILD) --jobs $(JOBS)

clean: ## remove the build folders
	@rm -rf $(BUILD) $(OPTIMISED) $(BUILD)-mutants $(ARM64) build-wheel* build-deb* dist
