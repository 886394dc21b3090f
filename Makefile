# Every target builds what it needs in .venv, from nothing but Python 3.11 or newer, make and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: bench-peers demo test test-random test-slow lint bench asan install clean
.DEFAULT_GOAL := demo

# pip with constraints.txt, never a looser request: that would download gigabytes of CUDA libraries for torch.
# torch is named first so that the pinned build is there before any package asks for a range of it.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/plugstream/_native/*.cpp src/plugstream/_native/*.hpp)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "building the environment in .venv (a minute or two)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/plugstream demo

# Two processes of one thread each: tests are small, and threads that wait for each other make them slow.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# The same tests on random examples, and five times as many: what this finds becomes an example of a test.
test-random: $(STAMP)
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -q -n 2 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# With peers to compare with: `make bench-peers` once, then `make bench`.
bench-peers: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'

bench: $(STAMP)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The native BM3D, TNRD and NLM under the sanitizers, as programs of their own: random calls. They need no Python.
NATIVE := src/plugstream/_native
SANITIZE := -std=c++20 -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -I$(NATIVE)
ifneq ($(filter x86_64 amd64,$(shell uname -m)),)
LEVELS := baseline avx2 avx512
endif
LEVELS ?= baseline
FLAGS_avx2 := -mavx2 -mfma
FLAGS_avx512 := -mavx512f -mavx512vl -mavx512bw -mavx512dq

asan:
	@mkdir -p build/asan
	@for level in $(LEVELS); do for part in tv_rows bm3d_match bm3d_filter tnrd_rows nlm_rows; do \
	  case $$level in avx2) flags="$(FLAGS_avx2)";; avx512) flags="$(FLAGS_avx512)";; *) flags="-Wno-psabi";; esac; \
	  $(CXX) $(SANITIZE) $$flags -DPLUGSTREAM_LEVEL=$$level -c $(NATIVE)/$$part.cpp -o build/asan/$$part-$$level.o || exit 1; \
	done; done
	$(CXX) $(SANITIZE) $(LEVELS:%=-DPLUGSTREAM_HAS_%) tests/native_fuzz.cpp $(NATIVE)/tv.cpp $(NATIVE)/bm3d.cpp \
	  $(NATIVE)/bm3d_tiles.cpp build/asan/*.o -pthread -o build/asan/native_fuzz
	./build/asan/native_fuzz 1000
	$(CXX) $(SANITIZE) $(LEVELS:%=-DPLUGSTREAM_HAS_%) tests/native_fuzz_tnrd.cpp $(NATIVE)/tv.cpp $(NATIVE)/tnrd.cpp \
	  $(NATIVE)/bm3d_tiles.cpp build/asan/*.o -pthread -o build/asan/native_fuzz_tnrd
	./build/asan/native_fuzz_tnrd 300
	$(CXX) $(SANITIZE) $(LEVELS:%=-DPLUGSTREAM_HAS_%) tests/native_fuzz_nlm.cpp $(NATIVE)/tv.cpp $(NATIVE)/nlm.cpp \
	  $(NATIVE)/bm3d_tiles.cpp build/asan/*.o -pthread -o build/asan/native_fuzz_nlm
	./build/asan/native_fuzz_nlm 300

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
