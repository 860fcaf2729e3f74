# make demo   plan a small LoRA Llama block for an H200, run the emitted kernels on this CPU, print the decisions
# make test   the test suite
# Both need python3 (3.11 or newer) and a package index; the first of them makes .venv, later runs reuse it.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
OUT ?= demo-out
# torch and triton are pinned as a pair. TORCH_INDEX holds torch's CPU builds.
TORCH ?= torch==2.13.0
TRITON ?= triton==3.7.1
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

RUN := $(VENV)/bin/python
# pip compiles on one core, and everything; most of these packages is never imported.
PIP := $(RUN) -m pip install -q --no-compile
SELDOM := '/(transformers|fontTools|matplotlib|mypy|torch/testing|sympy/.*/tests)/'
COMPILE := $(RUN) -m compileall -q -j $(JOBS) -x $(SELDOM)
STAMP := $(VENV)/.installed
export PYTHONHASHSEED ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test exhaustive lint types install clean

install: $(STAMP)

# torch comes from a local wheel folder if pip knows one, else from TORCH_INDEX, else as the default index has it
# (on Linux a CUDA build: larger, and works as well). Its own requirements follow with the rest, from the default index,
# while torch is compiled.
$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fusioncc needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps --no-index '$(TORCH)' 2>/dev/null \
	  || $(PIP) --no-deps --retries 1 --index-url $(TORCH_INDEX) '$(TORCH)' \
	  || $(PIP) '$(TORCH)'
	@$(COMPILE) $(VENV)/lib/*/site-packages/torch & \
	  $(PIP) '$(TRITON)' -e '.[test]'; installed=$$?; wait; exit $$installed
	-$(COMPILE) $(VENV)/lib
	@touch $@

demo: $(STAMP)
	$(VENV)/bin/fusioncc dump examples/llama_lora.py:factory --out $(OUT) --device h200
	@printf '%s\n' $(OUT)/kernels/*.py | TRITON_INTERPRET=1 xargs -n 1 -P $(JOBS) $(RUN)
	@echo; cat $(OUT)/decisions.md

test: $(STAMP)
	$(RUN) -m pytest -n $(JOBS) --dist worksteal -m 'not exhaustive and not timed' --ignore tests/gpu

exhaustive: $(STAMP)
	$(RUN) -m pytest -n $(JOBS) --dist worksteal -m exhaustive --ignore tests/gpu
	$(RUN) -m pytest -q -m timed --ignore tests/gpu

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(STAMP)
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) $(OUT)
