# `make` alone lists the targets. Each sets up what it needs, so all of them work in a fresh clone.

PY := .venv/bin/python

# Tests and demo start hundreds of interpreters, which should reuse the bytecode that the first one compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lock frameworks test test-docs test-drains test-frameworks test-long test-neighbour test-slurm test-sites bench-callbacks bench-own-way bench-contended bench-slurm check lint types docs docs-reference demo clean
.PHONY: bench-published bench-replay bench-elastic bench-elastic-campaign bench-elastic-peers bench-recovery-peers .nvrx .torchft .ckpt-peers chaos endurance bench-recovery bench-limits bench-identity bench-operator bench-outage bench-neighbour bench-healthy bench-agent bench-files fuzz-ckpt bench-ckpt bench-incremental bench-kills bench-protect health-matrix diagnosis-matrix bench-hangs bench-slowness diagnosis-report bench-status bench-scale bench-many bench-watch bench-report images bench-silent bench-placement

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## system packages (Debian, Ubuntu) and .venv/ with everything in it; quick if everything is installed
	@scripts/setup.sh

lock: ## rewrite requirements/login-node.txt: every package of a light installation, with hashes (needs uv)
	@UPGRADE=$(UPGRADE) scripts/lock.sh

# Several workers even on two cores, because tests mostly wait. Each worker has its own Slurm.
# .ci/run reads from the results on which Slurm releases the contract was tested.
test: setup ## all tests except the long ones
	$(PY) -m pytest -m "not long and not sandbox" -n 3 --dist worksteal --junitxml=.test-results/without-slurm.xml
	$(PY) -m pytest -m "not long and sandbox" -n 3 --dist worksteal --junitxml=.test-results/with-slurm.xml

test-long: setup ## the tests that take several seconds to minutes each
	$(PY) -m pytest -m long

test-docs: setup ## every command and snippet of README and docs, run as a reader would in a sandbox (15 min)
	$(PY) -m pytest -m long tests/docs/test_docs_run.py

frameworks: setup ## .frameworks/ with Hugging Face, Lightning, DeepSpeed, ... for tests (2 GB, 12 minutes; quick if complete)
	@scripts/frameworks.sh

# A framework that cannot be installed is named, and its cells in the table say so.
test-frameworks: frameworks ## each example through kills, a hang, a corrupted checkpoint, a time limit; as a table (40 min)
	status=0; .frameworks/bin/python -m pytest tests/integrations tests/heartbeat/test_auto_beat.py tests/e2e/test_frameworks.py -o junit_family=xunit1 --junitxml=.test-results/frameworks.xml || status=$$?; \
	$(PY) scripts/frameworks_table.py .test-results/frameworks.xml; exit $$status

bench-own-way: frameworks ## frameworks' own resume and warning beside transom's callbacks, same faults (half an hour)
	.frameworks/bin/python bench/frameworks_own_way.py

bench-callbacks: frameworks ## what do the framework callbacks cost per step? (a minute)
	.frameworks/bin/python bench/callbacks.py

# Creates users and groups, so it needs root; without it, tests that act as other users are skipped with that reason.
test-neighbour: setup ## other users, hostile folders, planted files, kernel lines, clocks, load; also the long tests (15 min)
	$(PY) -m pytest tests/neighbour tests/contrib tests/cli/test_cli_strangers.py tests/e2e/test_planted_code.py tests/e2e/test_taken_port.py \
		tests/e2e/test_clock_skew.py tests/supervise/agent/test_clocks_of_nodes.py tests/health/checks/test_kernel_forgery.py \
		tests/ckpt/restore/test_ckpt_restore_safe_unpickle.py

RELEASES ?= native trixie forky

# Other releases are fetched into ~/.cache/transom/releases (TRANSOM_SANDBOX_RELEASES). The last lines name unavailable
# ones, with the reason. On forky, each case of the contract runs with Slurm's commands and with pyslurm.
test-slurm: setup ## the contract with Slurm, and a node's death, on 22.05, 24.11, 26.05, as a table (RELEASES="forky"; 5 min)
	$(PY) scripts/slurm_contract.py $(RELEASES)

bench-slurm: setup ## what does one call to Slurm cost, on 22.05, 24.11, 26.05, and with pyslurm? (2 minutes)
	$(PY) bench/slurm_calls.py

lint: setup ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup ## mypy, strict on the pure core
	$(PY) -m mypy transom_cli
	$(PY) -m mypy examples/gpt

# Not --quiet: a warning that is not shown fails nothing. NO_MKDOCS_2_WARNING: a banner of the theme, unrelated to these pages.
docs: setup ## the documentation as a site in site/; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

docs-reference: setup ## rewrite the pages that are generated from the code: settings, commands, messages
	$(PY) scripts/reference.py

check: lint types docs test ## what CI runs: lint, types, documentation and tests

demo: setup ## train on a sandbox cluster, kill a node, watch the run come back, compare the result bit for bit
	$(PY) examples/demo/demo.py

SEED ?= 1
N ?= 20
PARALLEL ?= 1

SITE ?=
FIRST ?= 1
LOG ?=

chaos: setup ## N runs with random faults from SEED: do all invariants hold? (SITE=a,b FIRST=n LOG=file RECOVERY=1: around in-process restarts; a minute per run)
	$(PY) bench/chaos.py $(if $(RECOVERY),--recovery) --seed $(SEED) --first $(FIRST) --runs $(N) --parallel $(PARALLEL) --site "$(SITE)" $(if $(LOG),--log $(LOG))

SITES ?= all

test-sites: setup ## a node's death on each site profile, with a bit-identical result, as a table (SITES="a,b+c"; 20 min)
	$(PY) bench/sites.py --sites "$(SITES)"

bench-contended: setup ## who gets a run's nodes during a requeue, by the way of asking Slurm (2 hours)
	$(PY) bench/contended.py

RUNS ?= 60
FROM ?= 0

# Results are kept in .test-results/, so that a campaign can be interrupted, continued and split (RUNS=20 FROM=40).
test-drains: setup ## is no healthy node drained, and each faulty one isolated? RUNS=60 situations of each kind, FROM=0 (50 min)
	$(PY) bench/drains.py --from $(FROM) --runs $(RUNS)
	$(PY) bench/drains.py --faulty --from $(FROM) --runs $(RUNS)

# NVIDIA's ft_launcher, for comparison: not a dependency of transom; the bench reports if it is missing.
.nvrx: setup
	-test -e $@ || $(PY) -m pip install --quiet --no-deps --target $@ nvidia-resiliency-ext defusedxml pyyaml

bench-recovery: setup .nvrx ## faults: seconds to the first new step, beside torchrun, ft_launcher, Slurm alone (over an hour)
	$(PY) bench/recovery.py --nvrx .nvrx

# Results are kept in .test-results/, so that it can be interrupted, continued and split (PEER_RUNS=20 WAYS=torchrun,torchft).
PEER_RUNS ?= 5
bench-recovery-peers: setup .nvrx .torchft ## a rank killed, under transom, NVRx, torchft, torchrun (PEER_RUNS=5 WAYS=a,b; 2 hours)
	$(PY) bench/recovery_peers.py --out .test-results/recovery-peers.jsonl --runs $(PEER_RUNS) $(if $(WAYS),--ways $(WAYS))

bench-limits: setup ## a training over ten time limits, as one run (about 20 minutes)
	$(PY) bench/limits.py

bench-identity: setup ## is the result of 20 runs with a random fault bit-identical? (about 20 minutes)
	$(PY) bench/identity.py

bench-elastic: setup ## 50 random elastic runs: every sample once, and the bits of a calm run? (over an hour; continues)
	$(PY) bench/elastic_runs.py --out .test-results/elastic-runs.jsonl

bench-elastic-campaign: setup ## 48 hours in 15 minutes: one run with 30 shrinks, grows and crashes, its loss curve bit for bit
	$(PY) bench/elastic_runs.py --campaign --runs 1 --out .test-results/elastic-campaign.jsonl

bench-elastic-peers: setup .torchft ## a node lost and replaced: transom, torchrun 2:4, torchft, requeue (20 minutes)
	$(PY) bench/elastic_peers.py --rounds 3 --ways transom,requeue,torchrun,torchft --torchft .torchft

.torchft: setup
	test -e $@ || ($(PY) -m pip install --quiet --no-deps --target $@ torchft-nightly && \
		$(PY) -m pip install --quiet --upgrade --target $@ opentelemetry-exporter-otlp-proto-http opentelemetry-sdk)

bench-silent: setup ## wrong bits in trainings: found, missed, who was it, false alarms, cost (2 hours; interruptible)
	$(PY) bench/silent.py
	$(PY) bench/silent_culprits.py
	$(PY) bench/guard.py alarms
	$(PY) bench/guard.py overhead

bench-placement: setup ## what the order of nodes saves, and slow nodes by learned criteria, in simulated clusters (a minute)
	$(PY) bench/placement.py
	$(PY) bench/criteria.py

bench-operator: setup ## the operator killed in 10 incidents: is every action done exactly once? (about 16 minutes)
	$(PY) bench/operator_kill.py

bench-outage: setup ## slurmctld hangs or is dead for 10 minutes: does the run continue, and how often is Slurm called? (35 minutes)
	$(PY) bench/outage.py

bench-status: setup ## how long does `transom status` take on a run of 1,024 nodes?
	$(PY) bench/status.py

bench-report: setup ## how long does `transom report` take on a month of 1,000 incidents?
	$(PY) bench/report.py

images: setup ## docs/images/*.png: the live screen and the report of a real run, healthy, after a fault, held (6 minutes)
	$(PY) scripts/images.py

bench-scale: setup ## what does following 8 to 2,048 nodes cost operator and launcher, and how soon is silence reported? (8 minutes)
	$(PY) bench/scale.py

bench-many: setup ## a real job on 128 slurmd on this machine, with a node failure (5 minutes, 12 GB)
	$(PY) bench/many_nodes.py

bench-watch: setup ## what does `transom status --watch` cost on a run of 2,048 nodes?
	$(PY) bench/watch.py

LABELS ?=

diagnosis-report: setup ## labelled real logs (LABELS=FOLDER), with each source left out; then diagnosis-matrix (25 min)
	$(PY) bench/diagnosis_report.py $(LABELS)
	$(PY) bench/diagnosis_matrix.py

bench-healthy: setup ## a healthy, uneven run of 15 minutes: false alarms
	$(PY) bench/healthy.py

bench-agent: setup ## what does the agent cost its node: share of a core, memory (a minute)
	$(PY) bench/agent_cost.py

bench-files: setup ## load of nodes, operator and launcher on the shared file system: operations per second (needs strace)
	$(PY) bench/agent_files.py
	$(PY) bench/follow_files.py

# Other checkpointers, for comparison: not dependencies of transom, and installed without torch.
.ckpt-peers: setup
	-test -e $@ || $(PY) -m pip install --quiet --no-deps --target $@ $$($(PY) bench/ckpt_methods.py)

CASES ?= 2000
FROM ?= 0
JOBS ?= 2

fuzz-ckpt: setup ## random models, layouts, types, wrappers, faults: restored bit for bit, or refused by name (CASES, FROM, SEED)
	$(PY) bench/ckpt_fuzz.py --cases $(CASES) --from $(FROM) --seed $(SEED) --jobs $(JOBS)

GIB ?= 1
RANKS ?= 1

bench-ckpt: setup .ckpt-peers ## checkpoints: stall, durable, load, memory, after kill -9, beside all peers (GIB=1,3 RANKS=1,2,4)
	$(PY) bench/ckpt.py --gib $(GIB) --ranks $(RANKS) $$(test -d .ckpt-peers && echo --peers .ckpt-peers)

bench-incremental: setup ## bytes and seconds of incremental checkpoints: experts, embeddings (a minute)
	$(PY) bench/ckpt_incremental.py

KILLS ?= 1000
FROM ?= 0

bench-kills: setup ## 1,000 kills of trainers, daemons and nodes: is each restore right? (KILLS=n SEED=s FROM=k; hours)
	$(PY) bench/ckpt_kills.py --kills $(KILLS) --seed $(SEED) --from $(FROM)

bench-protect: setup ## what protecting snapshots on other nodes costs the training's network, by protect_rate (2 minutes)
	$(PY) bench/ckpt_protect.py

bench-neighbour: setup ## many runs of many users: calls to Slurm, file calls, memory, journals, warning storms (12 minutes)
	$(PY) bench/neighbour.py

endurance: setup ## a rank killed every 25 s for 15 minutes: memory, descriptors, threads, temporary files stay flat
	$(PY) bench/endurance.py

bench-hangs: setup ## which rank is named in a hang: composed hangs of 8, 64 and 512 ranks (2 minutes)
	$(PY) bench/hang_culprits.py --seeds 20
# Results are kept in .test-results/: remove published.jsonl there after a change of the simulator.
bench-published: setup ## the simulator beside published figures, and how long a node stays excluded (20 minutes)
	$(PY) bench/simulate_published.py --log .test-results/published.jsonl
	$(PY) bench/expiry.py

bench-replay: setup ## 16 faults in the sandbox, replayed in the simulator: how far off is it? (20 minutes)
	$(PY) bench/recovery.py --runs 4 --only rank-kill,node-kill,node-kill-spare,hang --elastic 0 --baseline 0 --json > .test-results/recoveries.json
	$(PY) bench/replay.py .test-results/recoveries.json

bench-slowness: setup ## slowness and numerics: false alarms and delays on generated trainings (a few minutes)
	$(PY) bench/slowness.py

# Needs root (namespaces, mounts). Rows that need another program (tc, iptables, fusermount3) say if it is missing.
# FAULTS="disk,link cut" tries only those; HEALTHY=0 omits the healthy preflights, FAULTS=- the faults.
HEALTHY ?= 100
FAULTS ?=

health-matrix: setup ## faults on the first, a middle, the last of 4 nodes: found, named, done; 100 healthy preflights (25 min)
	$(PY) bench/health_matrix.py --only "$(FAULTS)" --healthy $(HEALTHY)

diagnosis-matrix: setup ## real faults in jobs and supervised runs: are cause and culprit found? with 20 healthy runs (20 min)
	$(PY) bench/diagnosis_matrix.py

clean: ## remove caches and the demo's files, but not .venv/
	rm -rf .test-results .pytest_cache .mypy_cache .ruff_cache .hypothesis .demo .nvrx .torchft .ckpt-peers dist build site
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
