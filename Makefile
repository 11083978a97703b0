# `make` alone lists the targets. Each sets up what it needs, so any of them works in a fresh clone.

PY := .venv/bin/python

# Tests and demo start hundreds of interpreters, each of which is to find what the first one has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test test-long test-slurm bench-slurm check lint types docs docs-reference demo clean
.PHONY: .nvrx .ckpt-peers chaos bench-recovery bench-limits bench-identity bench-operator bench-outage bench-healthy bench-agent bench-files bench-ckpt bench-protect health-matrix diagnosis-matrix bench-hangs bench-slowness diagnosis-report bench-status bench-scale bench-many bench-watch bench-report images

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## system packages (Debian, Ubuntu) and .venv/ with everything in it; quick when all is there
	@scripts/setup.sh

# Several at a time also on two cores: much of what the tests do is to wait. Each worker has a Slurm of its own.
# The results are for .ci/run, which tells from them on which releases of Slurm the contract was tried.
test: setup ## all tests but the long ones
	$(PY) -m pytest -m "not long and not sandbox" -n 3 --dist worksteal --junitxml=.test-results/without-slurm.xml
	$(PY) -m pytest -m "not long and sandbox" -n 2 --dist worksteal --junitxml=.test-results/with-slurm.xml

test-long: setup ## the tests that take minutes each
	$(PY) -m pytest -m long

RELEASES ?= native trixie forky

# Another release is fetched and kept in ~/.cache/transom/releases (TRANSOM_SANDBOX_RELEASES). One that cannot be had is
# named, with the reason, in the last lines. On forky each case of the contract runs by Slurm's commands and by pyslurm.
test-slurm: setup ## the contract with Slurm, and a node's death, on 22.05, 24.11, 26.05, as a table (RELEASES="forky"; 5 min)
	$(PY) scripts/slurm_contract.py $(RELEASES)

bench-slurm: setup ## what does one call to Slurm cost, on 22.05, 24.11, 26.05 in turn, and by pyslurm? (2 minutes)
	$(PY) bench/slurm_calls.py

lint: setup ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup ## mypy, strict on the pure core
	$(PY) -m mypy transom_cli
	$(PY) -m mypy examples/gpt

# Not --quiet: a warning that is not shown fails nothing. NO_MKDOCS_2_WARNING: a banner of the theme, not about our pages.
docs: setup ## the documentation as a site in site/; a link or an anchor that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

docs-reference: setup ## rewrite the pages that are made from the code: settings, commands, messages
	$(PY) scripts/reference.py

check: lint types docs test ## what CI runs: lint, types, documentation and tests

demo: setup ## train on a sandbox cluster, kill a node, watch the run come back, compare the result bit for bit
	$(PY) examples/demo/demo.py

SEED ?= 1
N ?= 20
PARALLEL ?= 1

chaos: setup ## N runs with random faults from SEED, several each: does what must hold, hold? (about a minute a run)
	$(PY) bench/chaos.py --seed $(SEED) --runs $(N) --parallel $(PARALLEL)

# NVIDIA's ft_launcher, to be measured beside transom: no dependency of ours, and the bench says so where it is missing.
.nvrx: setup
	-test -e $@ || $(PY) -m pip install --quiet --no-deps --target $@ nvidia-resiliency-ext defusedxml pyyaml

bench-recovery: setup .nvrx ## faults: seconds to the first new step, beside torchrun, ft_launcher, Slurm alone (over an hour)
	$(PY) bench/recovery.py --nvrx .nvrx

bench-limits: setup ## a training over ten time limits, as one run (about 20 minutes)
	$(PY) bench/limits.py

bench-identity: setup ## is the result of 20 runs with a random fault bit-identical? (about 20 minutes)
	$(PY) bench/identity.py

bench-operator: setup ## the operator killed in 10 incidents: is everything done exactly once? (about 16 minutes)
	$(PY) bench/operator_kill.py

bench-outage: setup ## slurmctld hangs, or is dead, for 10 minutes: does the run go on, and how often is Slurm asked? (35 minutes)
	$(PY) bench/outage.py

bench-status: setup ## how long does `transom status` take on a run of 1,024 nodes?
	$(PY) bench/status.py

bench-report: setup ## how long does `transom report` take on a month of 1,000 incidents?
	$(PY) bench/report.py

images: setup ## docs/images/*.png: the live screen and the report of a real run, healthy, after a fault, held (6 minutes)
	$(PY) scripts/images.py

bench-scale: setup ## what does following 8 to 2,048 nodes cost operator and launcher, and how soon is silence told? (8 minutes)
	$(PY) bench/scale.py

bench-many: setup ## a real job on 128 slurmd on this machine, and a node's death in it (5 minutes, 12 GB)
	$(PY) bench/many_nodes.py

bench-watch: setup ## what does `transom status --watch` cost on a run of 2,048 nodes?
	$(PY) bench/watch.py

LABELS ?=

diagnosis-report: setup ## labelled real logs (LABELS=FOLDER), with each source left out; then diagnosis-matrix (25 min)
	$(PY) bench/diagnosis_report.py $(LABELS)
	$(PY) bench/diagnosis_matrix.py

bench-healthy: setup ## a healthy, uneven run of 15 minutes: false alarms
	$(PY) bench/healthy.py

bench-agent: setup ## what a node's agent costs the node: share of a core, memory (a minute)
	$(PY) bench/agent_cost.py

bench-files: setup ## what nodes, operator and launcher ask of the shared file system: operations a second (needs strace)
	$(PY) bench/agent_files.py
	$(PY) bench/follow_files.py

# What others do for checkpoints, to be measured beside transom: no dependency of ours either, and without its torch.
.ckpt-peers: setup
	-test -e $@ || $(PY) -m pip install --quiet --no-deps --target $@ $$($(PY) bench/ckpt_methods.py)

GIB ?= 1
RANKS ?= 1

bench-ckpt: setup .ckpt-peers ## checkpoints: stall, durable, load, memory, after kill -9, beside all peers (GIB=1,3 RANKS=1,2,4)
	$(PY) bench/ckpt.py --gib $(GIB) --ranks $(RANKS) $$(test -d .ckpt-peers && echo --peers .ckpt-peers)

bench-protect: setup ## what protecting snapshots on other nodes costs the training's network, by protect_rate (2 minutes)
	$(PY) bench/ckpt_protect.py

bench-hangs: setup ## who is named when ranks hang: composed hangs of 8, 64 and 512 ranks (2 minutes)
	$(PY) bench/hang_culprits.py --seeds 20
bench-slowness: setup ## slowness and numerics: false alarms and delays on made-up trainings (a few minutes)
	$(PY) bench/slowness.py

# Needs root (namespaces, mounts); rows that need a program more (tc, iptables, fusermount3) say so where it is missing.
# FAULTS="disk,link cut" tries those alone; HEALTHY=0 leaves the healthy preflights out, FAULTS=- the faults.
HEALTHY ?= 100
FAULTS ?=

health-matrix: setup ## faults on the first, a middle, the last of 4 nodes: found, named, done; 100 healthy preflights (25 min)
	$(PY) bench/health_matrix.py --only "$(FAULTS)" --healthy $(HEALTHY)

diagnosis-matrix: setup ## real faults in jobs and in supervised runs: is the cause told, and whose it is; 20 healthy runs (20 min)
	$(PY) bench/diagnosis_matrix.py

clean: ## remove caches and what the demo left; .venv/ stays
	rm -rf .test-results .pytest_cache .mypy_cache .ruff_cache .hypothesis .demo .nvrx .ckpt-peers dist build site
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
