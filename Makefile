# Each verb sets up what it needs: `make test` alone is enough on a machine with make and Python >= 3.10.
# Another interpreter: make PYTHON=/path/to/python3 test

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
TENSORS := .venv-tensors
FLINK := .venv-flink
BENCH = $(if $(wildcard $(FLINK)/bin/python),CUTLINE_BENCH_FLINK=$(FLINK)/bin/python) $(if $(wildcard \
  $(PEERS)/.stamp),$(PEERS),$(VENV))/bin/python
STAMP := $(VENV)/.stamp
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10)
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: test test-real test-cluster test-zoo test-containers check demo demo-agents bench clean test-adoption mutate
.PHONY: test-retention test-effects test-people test-output test-sinks test-schema test-crash fuzz-format
.PHONY: simulate simulate-mutants simulate-scale
.DEFAULT_GOAL := test

# The tests in parts, three at once.
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.parts

# With a real PostgreSQL and a real S3 server; `make test` leaves these out where the servers cannot be had.
# PostgreSQL is Debian's package postgresql; the S3 server comes with the pinned requirements.
test-real: $(STAMP)
	CUTLINE_TEST_REAL=1 $(BIN)/python -m pytest -q tests/storage/test_postgresql.py tests/storage/test_objects.py \
	  tests/storage/test_opening.py tests/system/test_places.py

# Several Ray nodes on this machine: a minute and a half, so not part of `make test`.
test-cluster: $(STAMP)
	$(BIN)/python -m tests.cluster.lost_node --messages 50000
	CUTLINE_TEST_CLUSTER=1 $(BIN)/python -m pytest -q tests/cluster

# Ten programs that users would write, on one Ray: a minute, so not part of `make test`.
test-adoption: $(STAMP)
	CUTLINE_TEST_ADOPTION=1 $(BIN)/python -m pytest -q tests/adoption

# Each of five versions of an application on the checkpoints of all before it: three minutes; `make test` has two pairs.
test-schema: $(STAMP)
	CUTLINE_TEST_SCHEMA=1 $(BIN)/python -m pytest -q tests/schema

# Random changes to awkward state between captures and restores, by every way of tracking: make test-zoo EXAMPLES=5000
EXAMPLES := 5000
test-zoo: $(STAMP)
	CUTLINE_TEST_ZOO=$(EXAMPLES) $(BIN)/python -m pytest -q tests/participant/test_zoo_in_a_row.py

# The tests of tensors and of pyarrow, which `make test` leaves out, and the zoo with tensors in it, in an environment of
# its own: half a minute, downloads (on Linux gigabytes, unless pip is told of torch's builds for the CPU) not counted.
.PHONY: test-tensors
test-tensors: $(TENSORS)/.stamp
	CUTLINE_TEST_ZOO=600 $(TENSORS)/bin/python -m pytest -q -rs tests/participant/test_tensors.py \
	  tests/participant/test_arrow.py tests/participant/test_zoo_in_a_row.py tests/participant/test_placeholders.py \
	  tests/system/test_zoo_travels.py

$(TENSORS)/.stamp: $(STAMP) requirements-tensors.txt
	$(BIN)/python -m venv $(TENSORS)
	$(TENSORS)/bin/python -m pip install -qq --disable-pip-version-check -r requirements-dev.txt -r requirements-tensors.txt
	$(TENSORS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Random operations on Maps and Logs between captures and restores: make test-containers EXAMPLES=5000
test-containers: $(STAMP)
	CUTLINE_TEST_CONTAINERS=$(EXAMPLES) $(BIN)/python -m pytest -q \
	  tests/participant/test_maps_in_a_row.py tests/participant/test_unread_in_a_row.py \
	  tests/participant/test_log.py

# Checkpoints of one system with ten kept: what its store has on the way must stay flat, and all that are listed
# must restore. Ten thousand take some minutes: make test-retention CUTS=10000
CUTS := 10000
test-retention: $(STAMP)
	$(BIN)/python -m tests.retention --cuts $(CUTS)

# Every condition of barrier/ turned round and every statement left out, one at a time: two minutes.
mutate: $(STAMP)
	$(BIN)/python -m tests.mutate

# A power cut and a death at every operation on files of a commit, a collection, an export, an import, inputs and steps, and the
# same at every request to PostgreSQL and S3 where both can be had. Needs a C compiler (cc).
test-crash: $(STAMP)
	$(BIN)/python -m tests.crash

# SIGKILL, and SIGSTOP with a late SIGCONT, at every step of an effect, against a recorder that writes down each call:
# make test-effects KILLS=300
KILLS := 300
test-effects: $(STAMP)
	$(BIN)/python -m tests.effects.matrix --kills $(KILLS)

# Questions to people, answers, suspensions and timers, of which `make test` has a few; then SIGKILL and SIGSTOP at every
# step from question to delivery, of whoever answers too: make test-people ASKED=100
ASKED := 54
test-people: $(STAMP)
	CUTLINE_TEST_PEOPLE=1 $(BIN)/python -m pytest -q tests/participant/test_people.py tests/system/test_people.py \
	  tests/system/test_suspending.py tests/ray/test_people.py
	$(BIN)/python -m tests.effects.matrix --asking --kills $(ASKED)

# The same at every step of what is emitted, to a file, a function, and a table where PostgreSQL can be had:
# make test-output KILLS=300 OUTPUT=--postgres
OUTPUT :=
test-output: $(STAMP)
	$(BIN)/python -m tests.effects.matrix --output $(OUTPUT) --kills $(KILLS)

# Lines that are emitted, and a power cut after every operation on the file and its journal, in every way that it can
# leave them: make test-sinks SEEDS=150
SEEDS := 150
test-sinks: $(STAMP)
	CUTLINE_TEST_SINKS=$(SEEDS) $(BIN)/python -m pytest -q tests/storage/test_line_file.py

# Random damage to every kind of file: make fuzz-format DURATION=60, in seconds
DURATION := 60
fuzz-format: $(STAMP)
	$(BIN)/python -m tests.fuzz --duration $(DURATION)

# Random schedules of the whole system, simulated: make simulate RUNS=20000
RUNS := 1500
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation.run --runs $(RUNS)

# Bugs planted in the whole system, one at a time: how many schedules it takes until each shows. Ten minutes.
simulate-mutants: $(STAMP)
	$(BIN)/python -m tests.simulation.mutants

# Messages and processor time of a snapshot, from ten to ten thousand participants, and of a frame: a minute.
simulate-scale: $(STAMP)
	$(BIN)/python -m tests.simulation.scale

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_errors.py tests/test_exports.py

# On plain processes, then on Ray with a part of the files: starting processes takes longer there.
demo: $(STAMP)
	$(BIN)/cutline demo
	$(BIN)/cutline demo --runtime ray --files 200

# A team of agents that pays, writes and asks a person, with DEATHS random kills from outside: participants, the
# coordinator, everything. The world's own record is compared with an undisturbed run. Three minutes:
# make demo-agents DEATHS=20
DEATHS := 20
demo-agents: $(STAMP)
	$(BIN)/cutline demo --agents --deaths $(DEATHS)

.PHONY: bench-quick bench-micro

# Every row, under an hour on 2 cores, and a report with pictures in bench/results. Rows of peers that are not
# installed are named there.
bench: $(STAMP)
	$(BENCH) -m bench --micro --report bench/results

# The same with smaller sizes and without what takes long: under ten minutes on 2 cores.
bench-quick: $(STAMP)
	$(BENCH) -m bench --quick --micro --report bench/results

# What each message and each checkpoint goes through, part by part: half a minute.
bench-micro: $(STAMP)
	$(BIN)/python -m pytest -q bench/micro --benchmark-columns=median,iqr,rounds

# Where the processor time of rows that fall short goes, by process and function, as texts in bench/results/profiles:
# make bench-profile ROWS=latency_vs_ray
ROWS := channel_vs_transport coordinator_slope latency_vs_ray map_stall_vs_pickle stall_vs_pickle throughput_kept_10
.PHONY: bench-profile
bench-profile: $(STAMP)
	$(BIN)/python -m bench.profiled --into bench/results/profiles $(ROWS)

# The peers that rows are measured against, in an environment of their own that `make bench` uses from then on, and
# the rows named peers_...: twenty minutes, downloads not counted. Apache Flink has one more; it needs `java`.
.PHONY: bench-peers
bench-peers: $(PEERS)/.stamp
	-$(PEERS)/bin/python -m venv $(FLINK)
	-$(FLINK)/bin/python -m pip install -qq --disable-pip-version-check -r requirements-bench-flink.txt
	CUTLINE_BENCH_FLINK=$(FLINK)/bin/python $(PEERS)/bin/python -m bench --only same_vs_same,$$( \
	  ls bench/bench_peers_*.py | sed 's,.*/bench_,,; s,\.py$$,,' | paste -sd,) \
	  --with bench/results/figures.json --report bench/results

$(PEERS)/.stamp: $(STAMP) requirements-bench.txt
	$(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check -r requirements-dev.txt -r requirements-bench.txt
	$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The stamp is written last, so an interrupted set-up starts over; a whole environment is kept and brought up
# to date, a broken one or one of too old a Python is made anew.
$(STAMP): requirements-dev.txt pyproject.toml
	@if ! { $(BIN)/python -c "$(USABLE)" && $(BIN)/python -m pip --version; } >/dev/null 2>&1; then \
	  found=; \
	  for candidate in $(CANDIDATES); do \
	    if "$$candidate" -c "$(USABLE)" >/dev/null 2>&1; then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "cutline needs Python 3.10 or newer with its venv and ensurepip modules; tried: $(CANDIDATES)." >&2; \
	    echo "Install one (on Debian the packages python3 and python3-venv) or name it:" \
	         "make PYTHON=/path/to/python3 test" >&2; \
	    exit 1; \
	  fi; \
	  echo "making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "installing the pinned requirements into $(VENV)"
	@$(PIP) -r requirements-dev.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $(STAMP)

clean:
	rm -rf $(VENV) $(PEERS) $(FLINK) $(TENSORS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
