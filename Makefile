# The interface. `make help` lists it; every target may be run again and picks up where it was.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
UPSTREAM_VENV ?= .venv-upstream
LEONARDO := $(VENV)/bin/leonardo
LADDER = --engine $(ENGINE) --seed $(SEED) --site $(SITE) --driver $(DRIVER) --upstream-python "$(UPSTREAM_VENV)/bin/python"
# on the desk what is missing below a stage is cheap, and runs first; else the stage says what to run
STAGE = $(LEONARDO) stage run $(LADDER) $(if $(filter desk,$(ENGINE)),--missing) $(if $(FORCE),--force "$(FORCE)")
# what a target cannot do without, in a line before it begins: $(call give,TO,TO=dir)
give = $(if $($(1)),,$(error give $(2)))
SEED ?= 1
SITE ?= desk
DRIVER ?= auto
DRIVERS ?= all
ENGINE ?= desk
TASKS ?= ../shared/tmax-sample/tasks.jsonl
JOBS ?= 2
N ?= 300
ROWS ?=
BUNDLE ?= out/assets.tar
BASE ?=
TRAINED ?=
RUN ?=
OTHER ?=
FORCE ?=

.PHONY: help setup bfcl functions assets assets-gc assets-bundle assets-unbundle bench-assets demo plan smoke calibrate pilot report evidence evaluate families gates parity audit diagnose repairs test test-sandbox lint format apptainer upstream bench-sandbox soak apply-patches unapply-patches diff new-patch \
	refresh-patches rebase-patches continue-patches abort-patches check-patches doctor clean launch-check bundle unbundle test-slurm slurm-packages \
	upstream-env upstream-wheels lock-upstream-env test-upstream

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | \
		awk -F ':.*## ' -v bold="$$([ ! -t 1 ] || printf '\033[1m')" -v plain="$$([ ! -t 1 ] || printf '\033[0m')" \
		'{printf "  %s%-18s%s %s\n", bold, $$1, plain, $$2}'
	@echo "Variables: SEED=$(SEED) SITE=$(SITE) ENGINE=$(ENGINE) DRIVER=$(DRIVER) TASKS=$(TASKS) JOBS=$(JOBS) VENV=$(VENV) UPSTREAM_VENV=$(UPSTREAM_VENV) PYTHON=$(or $(PYTHON),python3)"

setup: $(VENV)/.ready ## Python environment and system tools (idempotent)

$(VENV)/.ready: pyproject.toml tools/setup.sh
	@tools/setup.sh "$(VENV)"

demo: setup ## The main job: desk tasks, warm start, RL, base versus trained, report
	@$(LEONARDO) demo --seed $(SEED) --site $(SITE) --driver $(DRIVER)

plan: setup ## The ladder: which stages have passed, what is open, and why the rest is shut
	@$(LEONARDO) stage plan $(LADDER)

smoke: setup ## Plumbing: a few updates, weights handed over, a checkpoint that loads, a clean end; ENGINE=upstream for upstream's trainer
	@$(STAGE) smoke

calibrate: setup ## The signal gate: rewards vary inside groups and reach the weights; ENGINE=upstream for upstream's trainer
	@$(STAGE) calibrate

families: setup ## Model families: round trips, damaged calls, masks, and agreement with vLLM's parsers where UPSTREAM_VENV is
	@$(LEONARDO) families check --seed $(SEED) \
		$$(test -x "$(UPSTREAM_VENV)/bin/python" && echo --upstream-python "$(UPSTREAM_VENV)/bin/python")

pilot: setup ## Does training help on held-out tasks? Bounded, by a rule written down before; goes on where it was ended; FORCE=reason
	@$(STAGE) pilot

report: setup ## Of the ladder; of a run: RUN=folder; of two runs: RUN=folder OTHER=folder
	@$(LEONARDO) report $(RUN) $(OTHER) $(LADDER)

evidence: setup ## Verify the ledger: chain, entries, and the records that are still there
	@$(LEONARDO) evidence verify

gates: setup ## Environment gates on TASKS (where none are given and the sample is not there: a few desk tasks): build, null run, reference, reset, runtime, cleanup; SELECT as for assets
	@$(LEONARDO) gates $(if $(filter-out file,$(origin TASKS))$(wildcard $(TASKS)),"$(TASKS)") --site $(SITE) --driver $(DRIVER) --jobs $(JOBS) $(SELECT)

parity: setup ## Prepared states of TASKS against full images by Apptainer, path by path; writes out/parity.json
	@$(LEONARDO) parity "$(TASKS)" --site $(SITE) --driver $(DRIVER) --jobs $(JOBS) $(SELECT)

audit: setup ## Leaks, outputs that are there already, secrets, changed layers in TASKS; verdicts on rows; writes out/audit.json
	@$(LEONARDO) audit "$(TASKS)" --site $(SITE) --driver $(DRIVER) --jobs $(JOBS) $(SELECT)

evaluate: setup ## Two evaluation records, paired by task: BASE=record TRAINED=record; writes out/evaluate.json
	@$(call give,BASE,BASE=record TRAINED=record)$(call give,TRAINED,BASE=record TRAINED=record)$(LEONARDO) evaluate compare "$(BASE)" "$(TRAINED)"

doctor: setup ## What this machine allows: one line a driver, and what to do
	@$(LEONARDO) doctor --site $(SITE)

diagnose: setup ## One class for each row that fails, rung by rung, of a corpus with planted faults or of ROWS=file; N=300; goes on where it was
	@$(LEONARDO) diagnose $(ROWS) --count $(N) --seed $(SEED) --site $(SITE) --driver $(DRIVER) --jobs $(JOBS)

repairs: setup ## Write REPAIRS.md from the records of diagnose
	@$(LEONARDO) repairs

assets: setup ## Prepared states of TASKS; SELECT="--first 200" (see docs/assets.md); writes out/assets.json
	@$(LEONARDO) assets build "$(TASKS)" --site $(SITE) --driver $(DRIVER) --jobs $(JOBS) $(SELECT)

assets-gc: setup ## What no prepared state stands on: counted; DELETE=1 removes it; KEEP=rows.jsonl: only these stay
	@$(LEONARDO) assets gc --site $(SITE) --driver $(DRIVER) $(if $(KEEP),--keep "$(KEEP)") $(if $(DELETE),--delete)

assets-bundle: setup ## What TASKS need as one verified archive, BUNDLE=file; again, it goes on
	@$(LEONARDO) assets bundle "$(TASKS)" "$(BUNDLE)" --site $(SITE) --driver $(DRIVER) $(SELECT)

assets-unbundle: setup ## Put BUNDLE=file into this site's store; again, it goes on
	@$(LEONARDO) assets unbundle "$(BUNDLE)" --site $(SITE) --driver $(DRIVER)

test: setup ## The tests; those marked slow are left to test-sandbox
	@$(VENV)/bin/python -m pytest -q -m "not slow"

test-sandbox: setup ## The sandbox's tests on every driver of this machine (half an hour), or on DRIVERS="namespaces apptainer"; as root and as a plain user
	@LEONARDO_TEST_DRIVERS="$(DRIVERS)" $(VENV)/bin/python -m pytest -q tests/sandbox

bundle: setup ## All that a cluster without a network needs, in one folder with digests: TO=dir ROWS=file MODELS="qwen35_2b" FOLDERS="name=dir" WHEELS=dir
	@$(call give,TO,TO=dir)$(LEONARDO) launch bundle "$(TO)" --site $(SITE) --driver $(DRIVER) $(if $(ROWS),--rows "$(ROWS)") $(foreach model,$(MODELS),--model $(model)) $(foreach folder,$(FOLDERS),--model-folder "$(folder)") $(if $(UPSTREAM),--upstream "$(UPSTREAM)") $(if $(WHEELS),--wheels "$(WHEELS)")

unbundle: setup ## Verify a bundle and put it where SITE looks for it: FROM=dir SITE=leonardo; then upstream-env
	@$(call give,FROM,FROM=dir)$(LEONARDO) launch unbundle "$(FROM)" --site $(SITE) --driver $(DRIVER)

launch-check: setup ## What can be known of STAGES before the queue: STAGES="smoke calibrate" SITE=leonardo
	@$(call give,STAGES,STAGES="smoke calibrate")$(LEONARDO) launch check $(STAGES) --site $(SITE) --seed $(SEED)

test-slurm: setup ## Jobs on a real Slurm of two virtual nodes, set up and taken down in namespaces (root; make slurm-packages)
	@tests/slurm/cluster.sh $(VENV)/bin/python -m pytest -q tests/slurm $(if $(SLOW),,-m "not slow")

slurm-packages: ## Install Debian's Slurm, and MariaDB for its accounts, for test-slurm (root)
	@DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends slurmctld slurmd slurm-client slurmdbd mariadb-server munge iproute2 > /dev/null

lint: setup ## ruff, lint and format
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

format: setup ## Format the code
	@$(VENV)/bin/ruff check --fix -q . ; $(VENV)/bin/ruff format .

apptainer: ## Install Apptainer: the distribution's, or repacked for Debian 12; without root into .tools/
	@tools/install-apptainer.sh

bfcl: setup ## The function-calling rows and checkers (bfcl-eval, locked) into .tools/bfcl; WHEELS=dir without a network
	@tools/install-bfcl.sh "$(VENV)/bin/python" .tools/bfcl "$(WHEELS)"

.PHONY: transfer
transfer: bfcl ## The transfer study: terminal against function calling, both directions, two families; goes on where it was
	@$(LEONARDO) transfer $(if $(filter file,$(origin SEED)),,--seed $(SEED) )--site $(SITE) --driver $(DRIVER)

functions: bfcl ## Function calling: the package's references pass and changed copies do not; the split and its leaks
	@$(LEONARDO) functions check
	@$(LEONARDO) functions split

upstream: ## Fetch the upstream submodule, sparsely (training/open-instruct and rl_data only); UPSTREAM=dir for a mirror
	@tools/fetch-upstream.sh "$(UPSTREAM)"

upstream-env: ## The environment of upstream's trainer in UPSTREAM_VENV, locked: VARIANT=cpu or cuda, WHEELS=dir without a network
	@VENV="$(UPSTREAM_VENV)" VARIANT="$(VARIANT)" WHEELS="$(WHEELS)" tools/upstream-env.sh install

upstream-wheels: ## Download what upstream-env installs into WHEELS=dir, for a machine without a network
	@VARIANT="$(VARIANT)" WHEELS="$(WHEELS)" tools/upstream-env.sh wheels

lock-upstream-env: ## Make the locks of launch/environments anew (uv); FRESH=1 takes upstream's versions again
	@FRESH="$(FRESH)" tools/upstream-env.sh lock

test-upstream: setup ## Upstream's own tests, with the patches and without: none that passes without may fail with; needs upstream-env
	@$(LEONARDO) patches test --python "$(UPSTREAM_VENV)/bin/python"

apply-patches: setup ## Put the patch stack on upstream/ (branch leonardo/<pin>)
	@[ -e upstream/.git ] || tools/fetch-upstream.sh "$(UPSTREAM)"
	@$(LEONARDO) patches apply

unapply-patches: setup ## Leave upstream/ as it was fetched
	@$(LEONARDO) patches unapply

diff: setup ## The inserted lines with upstream's around them; PATCH=NNNN for one patch
	@$(LEONARDO) patches diff --patch "$(PATCH)"

new-patch: setup ## Make the edits in upstream/ a new patch: NAME=area-verb
	@$(call give,NAME,NAME=area-verb)$(LEONARDO) patches new "$(NAME)"

refresh-patches: setup ## Write edits in upstream/ back to the last patch, or to PATCH=NNNN
	@$(LEONARDO) patches refresh --patch "$(PATCH)"

rebase-patches: setup ## Carry the stack to another commit of upstream: ONTO=commit
	@$(call give,ONTO,ONTO=commit)$(LEONARDO) patches rebase "$(ONTO)"

continue-patches: setup ## Go on after a conflict or an interruption
	@$(LEONARDO) patches continue

abort-patches: setup ## Go back to before the conflict or the interruption
	@$(LEONARDO) patches abort

check-patches: setup ## Hold the patch stack to its rules; needs no checkout; writes out/check-patches.json
	@$(LEONARDO) patches check

bench-sandbox: setup ## Time the sandbox drivers of this machine; writes out/bench-sandbox.json
	@$(VENV)/bin/python -m benchmarks.sandbox

bench-assets: setup ## Layers against whole set-ups of TASKS, in size and file by file; writes out/bench-assets.json
	@$(VENV)/bin/python -m benchmarks.assets "$(TASKS)" --site $(SITE) --driver $(DRIVER) --jobs $(JOBS)

soak: setup ## 10,000 episodes with random kills of helpers, holders and sandboxes; SECONDS=60 for a short one
	@$(VENV)/bin/python benchmarks/soak.py --driver $(DRIVER) --seed $(SEED) $(if $(SECONDS),--seconds $(SECONDS))

clean: ## Remove the environment, results and installed tools (not the asset cache)
	@rm -rf "$(VENV)" out runs .tools
