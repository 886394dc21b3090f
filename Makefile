# Every target builds what it needs in .venv, from nothing but Python 3.11 or newer, make and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
# What PLUGSTREAM_LEVELS says of the kernels' instruction sets: nothing, for those of this machine, or all.
STAMP := .venv/.installed$(PLUGSTREAM_LEVELS:%=-%)
# Modules are compiled when they are first imported, which most of torch never is. What builds the package is pinned, too.
PIP := PIP_CONSTRAINT=$(abspath constraints.txt) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# Tests start many processes, each of which would compile every module again where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: bench-peers demo docs test test-browser test-emulated test-long test-peers test-printed test-random test-slow test-tiled test-wheel wheel lint bench asan install clean
.DEFAULT_GOAL := demo

# pip with constraints.txt, never a looser request: that would download gigabytes of CUDA libraries for torch.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/plugstream/_native/*.cpp src/plugstream/_native/*.hpp)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "building the environment in .venv (a minute or two)"
	$(PIP) -e .
	@rm -f .venv/.installed* && touch .venv/.installed $@

# .venv/.dev and its like: the packages of an extra of pyproject.toml, beside the package, which is not built again.
.venv/.%: $(STAMP)
	@$(BIN)/python -c "import tomllib; extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
	  print(*extras['$*'], sep='\n')" > .venv/$*.txt
	$(PIP) -r .venv/$*.txt
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/plugstream demo

# Two processes of one thread each: tests are small, and threads that wait for each other make them slow.
test: .venv/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# Those of tests/long.txt, which take half a second or more each: CI runs them too.
test-long: .venv/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "long and not (slow or emulated or browser)"

# Every command that README, docs/ and --help print, and remedies that errors name, on small data.
test-printed: .venv/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m printed tests/test_printed.py

# GPU kernels on the CPU, thread by thread; and pages in Chromium. Tests that are `slow` too are of test-slow.
test-emulated: .venv/.dev .venv/.emulated
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "emulated and not slow"

test-browser: .venv/.dev .venv/.browser
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "browser and not slow"

# The same tests on random examples, and five times as many: what this finds becomes an example of a test.
test-random: .venv/.dev
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -q -n 2 --dist worksteal

test-slow: .venv/.dev .venv/.emulated .venv/.browser
	PLUGSTREAM_THOROUGH=1 $(BIN)/python -m pytest -q -m "slow or thorough" --timeout 1800

# The bridges to other libraries with the real ones, and files that ismrmrd, nexusformat and qpimage write, in a folder
# beside the environment and without their torch. Of torchvision only the wheel for CUDA is on PyPI; what its import misses
# without one is added to the copy here.
BRIDGES := build/bridges
BRIDGE_PEERS := deepinv==0.5.0 pylops==2.8.0 pyproximal==0.13.0 torchvision==0.28.0 torchmetrics==1.9.0 lightning-utilities==0.15.3 \
  einops==0.8.2 natsort==8.4.0 tqdm==4.70.1 requests==2.34.2 urllib3==2.8.0 idna==3.20 certifi==2026.10.18 \
  charset-normalizer==3.5.2 ismrmrd==1.15.0 xsdata==26.10 \
  scico==0.0.7 jax==0.8.1 jaxlib==0.8.1 ml_dtypes==0.6.0 opt_einsum==3.4.0 flax==0.12.0 optax==0.2.8 orbax-checkpoint==0.12.8 \
  tensorstore==0.1.86 msgpack==1.2.4 absl-py==2.5.1 etils==1.15.0 protobuf==7.36.2 humanize==4.17.0 simplejson==4.3.0 \
  uvloop==0.23.0 aiofiles==25.1.0 psutil==7.2.2 treescope==0.1.10 \
  nexusformat==2.1.0 chardet==7.7.0 colored==2.3.2 lxml==6.1.3 python-dateutil==4.0.0 six==1.17.0 \
  qpimage==0.9.3 nrefocus==0.8.0 qpretrieve==0.7.0 lmfit==1.3.4 asteval==1.0.10 uncertainties==3.2.3 dill==0.4.1 numexpr==2.14.2

$(BRIDGES)/.installed: .venv/.dev tests/bridges/torchvision_without_cuda.py
	rm -rf $(BRIDGES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(BRIDGES) $(BRIDGE_PEERS)
	cat tests/bridges/torchvision_without_cuda.py >> $(BRIDGES)/torchvision/extension.py
	@touch $@

test-peers: $(BRIDGES)/.installed
	PYTHONPATH=$(BRIDGES) $(BIN)/python -m pytest -q -m "slow or not slow" tests/bridges \
	  tests/scans/importers/test_ismrmrd.py tests/test_walkthroughs.py

# Runs of a Tiled catalogue and of a bluesky RunEngine with a real server and engine: 1 GB, in an environment of its own
# that also sees .venv.
TILED := build/tiled-venv

$(TILED)/.installed: .venv/.dev
	@test -x $(TILED)/bin/python || $(BIN)/python -m venv $(TILED)
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" \
	  > $$($(TILED)/bin/python -c "import site; print(site.getsitepackages()[0])")/product.pth
	$(TILED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'tiled[client,server]' bluesky
	@touch $@

test-tiled: $(TILED)/.installed
	TILED_RETRY_ATTEMPTS=2 OMP_NUM_THREADS=1 $(TILED)/bin/python -m pytest -q -m "slow or not slow" \
	  tests/scans/importers/test_tiled.py tests/bridges/test_bluesky.py

# In dist/: the source distribution, a wheel for Python 3.11 and one for 3.12 and later, of the interpreters that are here.
wheel:
	$(PYTHON) release/wheels.py --out dist

# What is in dist/, in environments without a compiler and outside of this folder.
test-wheel:
	$(PYTHON) release/try_wheel.py --wheels dist

# The site, in an environment of its own that also sees .venv: pages, executed examples, then links and doctests.
DOCS := build/docs-venv
SPHINX := $(DOCS)/bin/python -m sphinx -W --keep-going -q -d build/doctrees

$(DOCS)/.installed: .venv/.dev
	@test -x $(DOCS)/bin/python || $(BIN)/python -m venv $(DOCS)
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" \
	  > $$($(DOCS)/bin/python -c "import site; print(site.getsitepackages()[0])")/product.pth
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	@touch $@

docs: $(DOCS)/.installed
	OMP_NUM_THREADS=1 $(SPHINX) -b html docs build/site
	$(SPHINX) -b linkcheck docs build/linkcheck
	$(SPHINX) -b doctest docs build/doctest
	@echo "the site is in build/site/index.html"

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# With peers to compare with: `make bench-peers` once, then `make bench`. Those of tomography, which ask for versions of
# their own, have a Python of their own.
bench-peers: .venv/.bench
	@test -x build/peers/bin/python || $(PYTHON) -m venv build/peers
	build/peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  $$(grep '^torch==' constraints.txt) astra-toolbox==2.5.0 diffct==2.5.0 scikit-image sigpy==0.1.27 mri-nufft==1.5.1 finufft

bench: $(STAMP)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The native kernels under the sanitizers, as programs of their own that need no Python: random calls, in all levels.
ASAN := build/asan
CMAKE := build/cmake-venv

$(CMAKE)/.installed: constraints.txt
	$(PYTHON) -m venv $(CMAKE)
	$(CMAKE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt cmake ninja
	@touch $@

asan: $(CMAKE)/.installed
	$(CMAKE)/bin/cmake -S . -B $(ASAN) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(CMAKE))/bin/ninja -DPLUGSTREAM_FUZZ=ON -DPLUGSTREAM_LEVELS=all
	$(CMAKE)/bin/cmake --build $(ASAN)
	$(CMAKE)/bin/ctest --test-dir $(ASAN) -j 2 --output-on-failure

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
