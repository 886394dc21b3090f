# Every target builds what it needs in .venv, from nothing but Python 3.11 or newer, make and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-slow lint bench install clean
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

test: $(STAMP)
	$(BIN)/python -m pytest -q

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
