# Every target prepares what it needs; `make help` lists them.
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready
MUTANTS := .local/mutants/.venv
# What is installed in Azure. The lock files name every package, so nothing is resolved.
AUDIT := $(BIN)/pip-audit --strict --timeout 5 --progress-spinner off --disable-pip --no-deps \
	-r requirements.txt -r requirements-sql.txt -r requirements-synapse.txt -r requirements-databricks.txt

.PHONY: help setup check test audit run settings package bench simulate mutants soak lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with all that development needs (safe to repeat)

$(READY): requirements.txt requirements-dev.txt local/requirements-host.txt local/requirements-node.txt local/package-lock.json local/setup.sh
	@sh local/setup.sh
	@touch $(READY)

check: $(READY) ## format, lint, types, the dependency rule, and security
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -ll -ii -r function_app.py scaling_rules.py shared spark_jobs backtest local
	@report=$$($(AUDIT) 2>/dev/null) || { echo "$${report:-not audited: no data on vulnerabilities; make audit says why}"; [ -z "$$report" ]; }

test: check ## check, then every test, on all cores
	$(BIN)/python -m pytest -n auto --dist worksteal

audit: $(READY) ## known vulnerabilities of what is installed in Azure; fails without data on them
	@$(AUDIT)

run: $(READY) ## the whole system on this machine with a live view, and a night; Ctrl-C stops it
	@$(BIN)/python -m local --night

settings: $(READY) ## write docs/settings.md and local.settings.json.example as declared
	@$(BIN)/python -m local.settings_reference

package: $(READY) ## the app as a zip to deploy, in .local/app.zip
	@$(BIN)/python -m local.package

bench: $(READY) ## measurements as JSON lines; GROUP=decide for one group
	@$(BIN)/python -m bench $(GROUP)

simulate: $(READY) ## every seeded simulation, then random calls on every store; SEEDS=10000 FIRST=5000 EXAMPLES=200, or SEED=7 ONLY=ingestion again
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))
	@$(if $(SEED)$(ONLY),,STATEFUL_EXAMPLES=$(or $(EXAMPLES),60) $(BIN)/python -m pytest -q --timeout 0 tests/contract/test_stateful_*.py)

mutants: $(MUTANTS)/.ready ## small changes to the rules that some test must notice; ONLY='shared.autoscaling.deciding.decide.*'
	@$(MUTANTS)/bin/python -m tests.mutants $(if $(ONLY),'$(ONLY)')

$(MUTANTS)/.ready: local/requirements-mutants.txt $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(MUTANTS)
	@$(BIN)/uv pip install --quiet --python $(MUTANTS)/bin/python -r local/requirements-mutants.txt
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(MUTANTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	@touch $@

soak: $(READY) ## read an event hub with processes that are killed; ARGUMENTS="--kills 20 --events 5000"
	@$(BIN)/python -m bench.soak $(ARGUMENTS)

lock: $(READY) ## resolve requirements*.in into requirements*.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate requirements.in -o requirements.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate requirements-sql.in -o requirements-sql.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate requirements-databricks.in -o requirements-databricks.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate requirements-synapse.in -o requirements-synapse.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate requirements-dev.in -o requirements-dev.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate local/requirements-mutants.in -o local/requirements-mutants.txt

clean: ## remove what setup and runs made
	rm -rf .venv .local local/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
