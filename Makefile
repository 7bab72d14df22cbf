# make demo      train and evaluate a small ViT on real images in mixed precision, no download of data
# make test      lint and every test that needs no GPU
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint test-slow test-gpu test-peers clean

demo: $(VENV)/.installed
	cd image_classification/ViT && ../../$(BIN)/python main_single_gpu.py -cfg=./configs/vit_tiny_digits.yaml -amp

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not slow and not gpu and not peers"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m "slow"

# The contract of every precision mode on a GPU, compared with the CPU reference; skips where there is none.
test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m "gpu" tests/test_gpu_contract.py

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; name a Python 3.10-3.12: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt requirements-common.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
