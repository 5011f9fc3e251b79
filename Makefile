# Every target sets up what it needs on a fresh machine: uv, a virtual environment, the pinned packages.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint format speed lock clean

demo: $(READY)
	$(BIN)/bayescal demo --force

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -rs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

speed: $(READY)
	$(BIN)/python -m speed

# torch and torchvision must come as a matching pair: uv resolves them together (see CONTRIBUTING.md).
$(READY): pyproject.toml requirements.lock
	command -v uv >/dev/null || $(PYTHON) -m pip install --quiet uv
	test -x $(BIN)/python || uv venv --quiet --python ">=3.11" $(VENV)
	uv pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements.lock
	uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $(READY)

lock:
	uv pip compile --quiet --universal --no-header --no-annotate --python-version 3.11 \
		--all-extras pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) demo-output
