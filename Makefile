# Three commands: `make demo`, `make test` and `make reliability`. They build their environment by themselves.
#
# The libraries (several GB) live in a folder keyed by pyproject.toml's hash, outside of the
# checkout, so that any number of clones share them. The checkout holds only a thin `.venv` with
# this package on top; `source .venv/bin/activate` gives you the `dsl` command.

PYTHON ?= python3
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dsl
KEY    := $(shell $(PYTHON) -c "import hashlib, sys; print(hashlib.sha256(open('pyproject.toml', 'rb').read() + sys.version.encode()).hexdigest()[:12])")
LIBS   := $(CACHE)/libs-$(KEY)
RUN    := .venv/bin/python

.PHONY: test demo reliability env clean

env: .venv/ready-$(KEY)

$(LIBS)/ready:
	@mkdir -p $(CACHE)
	@echo "installing the libraries into $(LIBS) (once; a few minutes)"
	@rm -rf $(LIBS) && $(PYTHON) -m venv $(LIBS)
	@$(PYTHON) -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print('\n'.join(p['dependencies'] + [d for e in p['optional-dependencies'].values() for d in e]))" > $(LIBS)/requirements.txt
	@$(LIBS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(LIBS)/requirements.txt "setuptools>=69"
	@touch $@

.venv/ready-$(KEY): $(LIBS)/ready
	@rm -rf .venv && $(PYTHON) -m venv --without-pip .venv
	@$(LIBS)/bin/python -c "import site; print(site.getsitepackages()[0])" > "$$($(RUN) -c 'import site; print(site.getsitepackages()[0])')/libs.pth"
	@$(LIBS)/bin/python -m pip --python $(RUN) install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

test: env
	$(LIBS)/bin/ruff check .
	$(LIBS)/bin/ruff format --check .
	$(LIBS)/bin/mypy --python-executable $(RUN)
	$(RUN) -m pytest -n 2

# The main job on the embedded data set: 100 labels alone, then with 900 unlabeled images.
demo: env
	@rm -rf demo
	.venv/bin/dsl demo demo

# Kills, faults, hostile files, many processes, a soak: one table, under 40 minutes on 2 cores.
reliability: env
	$(RUN) -m benchmarks.reliability

clean:
	rm -rf .venv demo runs build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
