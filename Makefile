# Every command of the project. Each is one line that can be read, or a script that can.
PYTHON ?= python3
.PHONY: setup demo test lint model fuzz bench bench-pool probe conformance soak wheel clean-cache

# What a fresh machine needs: a toolchain, Python headers, and the tools in .cache/.
setup:
	.ci/setup

# The example project on http://127.0.0.1:8000, in a virtual environment of its own.
demo: .venv/bin/hoopsnake
	.venv/bin/python examples/django_demo/manage.py migrate --noinput
	.venv/bin/python examples/django_demo/manage.py demo_data
	exec .venv/bin/hoopsnake --app-dir examples/django_demo demo

.venv/bin/hoopsnake: $(shell git ls-files server ws pybridge pyproject.toml Cargo.toml Cargo.lock)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed: make demo PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade pip
	.venv/bin/python -m pip install . 'django>=4.2'
	touch $@

# Everything that CI runs, with its budget.
test:
	$(PYTHON) .ci/stages.py

lint:
	$(PYTHON) .ci/stages.py fmt clippy deny

# The order of the pool's steps, checked by loom.
model:
	$(PYTHON) .ci/stages.py model

# A minute for each target of server/fuzz (cargo install --locked cargo-fuzz).
fuzz:
	.ci/fuzz 60

# Against granian and gunicorn; writes bench/results/.
bench:
	$(PYTHON) bench/compare.py

# The pool against itself without its rules, and against its peers: over two hours.
bench-pool:
	$(PYTHON) bench/pool.py

# Whether the pool serves in order, and would not without its rules; a stage of `make test`.
probe:
	$(PYTHON) bench/probe.py

# The whole product of Pythons and kernel interfaces, and the public suites.
conformance:
	$(PYTHON) .ci/stages.py --all

# An hour of everything at once: SOAK_SECONDS on each of SOAK_IO, results in .cache/soak.
soak: export SOAK_SECONDS ?= 1800
soak:
	$(PYTHON) .ci/stages.py wheel soak

# Wheels for every Python that is found, in .cache/wheels.
wheel:
	$(PYTHON) .ci/stages.py wheel
