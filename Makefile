# Every target in plain commands: see README.md, "Without make".
PYTHON ?= python3
BIN = .venv/bin
NOTEBOOKS = chapters/*.ipynb assignments/*.ipynb tests/chapter_template.ipynb
export OMP_NUM_THREADS ?= 1

.PHONY: book test test-newest lab refresh assets bench clean

book: .venv/installed
	$(BIN)/jupyter-book build . -W -n --keep-going
	@echo "Open file://$(CURDIR)/_build/html/index.html"

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell *.md chapters/*.md resnotes tests
	$(BIN)/pytest -q -n 2 -m "not browser"
	$(BIN)/pytest -q -n 2 --dist loadfile --nbval --nbval-current-env $(NOTEBOOKS)
	$(MAKE) book
	$(BIN)/pytest -q -n 2 --dist worksteal -m browser tests

test-newest:
	$(PYTHON) tests/newest_python.py

lab: .venv/installed
	$(BIN)/jupyter lab --notebook-dir=chapters

refresh: .venv/installed
	$(BIN)/python -m resnotes.notebooks refresh $(NOTEBOOKS)
	$(BIN)/python -m resnotes.ledger

assets: .venv/installed
	$(BIN)/python -m resnotes.notebooks assets $(NOTEBOOKS)

bench: .venv/installed
	for script in tests/benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf _build

.venv/installed: requirements.txt pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and \
	  'Residual Notes needs Python 3.11 or newer; set PYTHON=/path/to/python3.11')"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r requirements.txt
	touch $@
