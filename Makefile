# make demo      train and evaluate a small ViT on real images in mixed precision, no download of data
# make test      lint, types and the tests that take seconds and need no GPU
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
# make demo DEVICE=gpu CUDA=cu126: Paddle for CUDA 12.6 from Paddle's own package page (cu118, cu126, cu129, cu130)
DEVICE ?= auto
CUDA   ?= cu126
CUDAS  := cu118 cu126 cu129 cu130
$(if $(filter $(CUDA),$(CUDAS)),,$(error CUDA=$(CUDA): expected one of $(CUDAS)))
GPU    := $(if $(filter auto,$(DEVICE)),$(wildcard $(VENV)/.installed-cu*))
INSTALLED := $(if $(filter gpu%,$(DEVICE)),$(VENV)/.installed-$(CUDA),$(firstword $(GPU) $(VENV)/.installed))

# Tests start hundreds of processes: what these import is compiled once, also where an image says otherwise.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test lint test-slow test-browser test-mutations test-device test-edges test-amx test-gpu test-peers test-fuzz test-matrix docs chromium clean

help:
	@echo "make demo         train and evaluate a small ViT on real images in mixed precision, about two minutes"
	@echo "make test         lint, types and the tests that take seconds and need no GPU"
	@echo "make test-slow    tests that take minutes: large topologies, random kills"
	@echo "make test-mutations  planted faults, one at a time, each of which its test must find; half an hour"
	@echo "make test-device  the device path on a plug-in of our own, needs g++"
	@echo "make test-edges   the half arithmetic where memory beyond every tensor is forbidden, needs gcc; half an hour"
	@echo "make test-amx     the kernels' products by AMX, in software where no processor has it; a few minutes, needs g++"
	@echo "make test-gpu     every precision mode on a GPU, compared with the CPU"
	@echo "make test-browser  VisualDL's page of a resumed run in chromium, which is installed where it can be"
	@echo "make test-peers   logits, preprocessing, files and checkpoints against PyTorch, timm, torchvision, PaddleViT, PaddleClas"
	@echo "make test-fuzz    changed files of every format that comes from outside, SECONDS=3600 of them"
	@echo "make docs         the API reference, from the docstrings, in build/docs"
	@echo "make test-matrix  what depends on a version, with every Python and Paddle that the README names"

demo: $(INSTALLED)
	cd image_classification/ViT && ../../$(BIN)/python main_single_gpu.py -cfg=./configs/vit_tiny_digits.yaml -amp -device=$(DEVICE)

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not slow and not gpu and not peers and not device"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/tools/test_mutate.py -k list

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m "slow and not device"
	$(BIN)/python -m tests.device -q -m "(device or gpu) and slow" tests/device tests/house

# In copies of this tree; writes the page of the results.
test-mutations: $(VENV)/.installed-dev
	$(BIN)/python tools/mutate.py -table docs/mutations.md

# 140 cases a second on a quiet core, each with limits of memory and time that the operating system enforces; a part of
# them, always the same, is in `make test`.
SECONDS ?= 3600
test-fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

# What a GPU would run, on a plug-in device of our own that computes on the CPU: docs/devices.md.
test-device: $(VENV)/.installed-dev
	@command -v g++ >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install -y -qq g++; } || true
	$(BIN)/python -m tests.device

# What reads or writes beyond a tensor ends its test by a signal.
test-edges: $(VENV)/.installed-dev
	$(BIN)/python -m tests.edges

# Numbers, memory and configurations of tiles; not the speed, nor what oneDNN computes by AMX.
test-amx: $(VENV)/.installed-dev
	$(BIN)/python -m tests.amx

# The contract of every precision mode on a GPU, compared with the CPU reference; skips where there is none.
test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m "gpu" tests/house

docs: $(VENV)/.installed-dev
	$(BIN)/python tools/make_api_reference.py

# Needs python3.10, python3.11 and python3.12 on the PATH; the environments stay in .venv-matrix.
test-matrix: $(VENV)/.installed-dev
	$(BIN)/python tools/version_matrix.py

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; name a Python 3.10-3.12: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One Paddle at a time: two would share a folder, and pip takes that of one CUDA for that of another.
ONE_PADDLE = $(BIN)/python -m pip uninstall -qq --yes paddlepaddle paddlepaddle-gpu; rm -f $(VENV)/.installed*

$(VENV)/.installed: requirements.txt requirements-common.txt | $(VENV)/bin/python
	$(if $(wildcard $(VENV)/.installed-cu*),$(ONE_PADDLE))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(VENV)/.installed-cu%: requirements-gpu.txt requirements-common.txt | $(VENV)/bin/python
	$(ONE_PADDLE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check paddlepaddle-gpu==3.3.1 \
		-i https://www.paddlepaddle.org.cn/packages/stable/cu$*/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-gpu.txt
	touch $@

# PyTorch, timm and torchvision stay out of the zoo's own environment. torchvision without its dependencies: it would
# replace PyTorch by the build for GPUs.
test-peers: $(VENV)/.installed-dev .venv-peers/.installed .venv-peers/PaddleViT .venv-peers/PaddleClas
	PEERS_PYTHON=.venv-peers/bin/python PADDLEVIT=.venv-peers/PaddleViT PADDLECLAS=.venv-peers/PaddleClas $(BIN)/python -m pytest -q -m peers tests/peers

.venv-peers/.installed: requirements-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-peers.txt
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps timm==1.0.31 torchvision==0.29.2
	touch $@

# Its code runs as it is, in the zoo's own environment.
.venv-peers/PaddleViT: | .venv-peers/.installed
	git clone --quiet https://github.com/BR-IDL/PaddleViT $@.new
	git -C $@.new checkout --quiet 5ac7d89d4fd0e3235d055ff15d5b1b1315499d70
	mv $@.new $@

.venv-peers/PaddleClas: | .venv-peers/.installed
	git clone --quiet https://github.com/PaddlePaddle/PaddleClas $@.new
	git -C $@.new checkout --quiet d178931fca432204e6b7422bac4f92e09ff22fa4
	mv $@.new $@

# Debian's package, some 300 MB; fonts for the charts' titles come with it.
chromium:
	apt-get update -q && apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core

# VisualDL's page of a resumed run in a real browser; skips, and says so, where there is none and none can be installed.
test-browser: $(VENV)/.installed-dev
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && $(MAKE) chromium; } || true
	$(BIN)/python -m pytest -q -rs tests/house/test_visualdl_page.py

clean:
	rm -rf build $(VENV) .venv-peers .venv-matrix .pytest_cache .ruff_cache .mypy_cache
