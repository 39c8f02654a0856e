# Every target installs what it needs. `make help` lists the targets.
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready
READY_TO_RUN := .venv/.ready-to-run
READY_FOR_NIGHT := .venv/.ready-for-night
MUTANTS := .local/mutants/.venv
# The packages that are installed in Azure. The lock files list all of them, so none is resolved.
AUDIT := $(BIN)/pip-audit --strict --timeout 5 --progress-spinner off --disable-pip --no-deps \
	-r requirements/app.txt -r requirements/sql.txt

.PHONY: help setup check test audit run night settings package picture infra emulators core-tools bench prove simulate mutants soak cluster lock release clean

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with everything that development needs

SETUP := local/setup.sh local/package-lock.json requirements/host.txt requirements/node.txt
$(READY): requirements/dev.txt $(SETUP)
	@sh local/setup.sh dev
	@touch $(READY) $(READY_TO_RUN) $(READY_FOR_NIGHT)

$(READY_FOR_NIGHT): requirements/app.txt requirements/local.txt requirements/spark.txt $(SETUP)
	@sh local/setup.sh app local spark
	@touch $(READY_FOR_NIGHT) $(READY_TO_RUN)

$(READY_TO_RUN): requirements/app.txt requirements/local.txt $(SETUP)
	@sh local/setup.sh app local
	@touch $(READY_TO_RUN)

check: $(READY) ## check format, lint, types, dependency rules and security
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -ll -ii -r function_app.py scaling_rules.py shared spark_jobs backtest local
	@report=$$($(AUDIT) 2>/dev/null) || { echo "$${report:-packages were not audited, because no vulnerability data was available; make audit shows why}"; [ -z "$$report" ]; }

test: check ## run all checks, then all tests but those of `make cluster`, on all cores
	@rm -f .local/tests.xml*
	$(BIN)/python -m pytest -n auto --dist worksteal --junitxml .local/tests.xml
	@$(BIN)/python -m tests.census .local/tests.xml

audit: $(READY) ## list known vulnerabilities of the deployed packages; fails without vulnerability data
	@$(AUDIT)

run: $(READY_TO_RUN) ## run the autoscaler on this machine with a live view; FIRST_HOUR=1 shows a fresh deployment; Ctrl-C stops it
	@sh local/setup.sh amqp
	@$(BIN)/python -m local $(if $(FIRST_HOUR),--first-hour)

night: $(READY_FOR_NIGHT) ## make run, and the nightly Spark job beside it
	@sh local/setup.sh amqp
	@$(BIN)/python -m local --night

settings: $(READY) ## write docs/settings.md, local.settings.json.example and docs/commands.md from the code
	@$(BIN)/python -m local.settings_reference
	@$(BIN)/python -m tests.docs.commands_reference

package: $(READY) ## write the app as a zip to deploy, .local/app.zip
	@$(BIN)/python -m local.package

picture: $(READY) ## make the pictures of the documentation; needs chromium
	@$(BIN)/python -m bench.pictures

RELEASE := .local/release
TAGGED := $(VERSION:v%=%)
release: $(READY) ## write what a release publishes to .local/release: VERSION=v0.2.0
	@grep -qx 'version = "$(TAGGED)"' pyproject.toml || { echo 'VERSION=$(VERSION) is not the version in pyproject.toml'; exit 1; }
	@rm -rf $(RELEASE) build && mkdir -p $(RELEASE)/files
	@sed -n '/^## $(TAGGED) (/,/^## /{/^## /!p;}' CHANGELOG.md > $(RELEASE)/notes.md
	@[ -s $(RELEASE)/notes.md ] || { echo 'CHANGELOG.md has no dated heading for $(TAGGED)'; exit 1; }
	@$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir $(RELEASE)/files
	@rm -rf build *.egg-info
	@$(BIN)/python -m local.package $(RELEASE)/files/app.zip
	@$(BIN)/python -m local.sbom $(RELEASE)/files/sbom.cdx.json
	@sh infra/check.sh ../$(RELEASE)/files/azuredeploy.json

infra: ## compile, lint and format-check the Bicep templates with bicep or az bicep; a warning is an error
	@sh infra/check.sh

emulators: $(READY) ## test messaging and ingestion against Microsoft's emulators in Docker; ACCEPT_EULA=Y accepts their licences
	@sh tests/emulators/run.sh $(ARGUMENTS)

core-tools: $(READY) ## run the package under func start of Azure Functions Core Tools, with local stand-ins
	@command -v func >/dev/null || { echo "func was not found. Install Azure Functions Core Tools 4: https://learn.microsoft.com/azure/azure-functions/functions-run-local"; exit 1; }
	@$(BIN)/python -m pytest -rs -p no:xdist tests/core_tools

bench: $(READY) ## measure performance, one JSON line a figure; GROUP=decide runs one group
	@$(BIN)/python -m bench $(GROUP)

prove: $(READY) ## run a load with faults for ten minutes, and write .local/proof.html; ARGUMENTS="--minutes 20"
	@$(BIN)/python -m local.prove $(ARGUMENTS)

simulate: $(READY) ## run all seeded simulations, then random calls on all stores; SEEDS=10000 FIRST=5000 EXAMPLES=200, or SEED=7 ONLY=ingestion to repeat one
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))
	@$(if $(SEED)$(ONLY),,STATEFUL_EXAMPLES=$(or $(EXAMPLES),60) $(BIN)/python -m pytest -q --timeout 0 $$(grep -rlE 'tests.storage.(stateful|table_machine)' tests --include='test_*.py'))

mutants: $(MUTANTS)/.ready ## make small changes to the code that a test must notice; ONLY=deciding/guards, or ARGUMENTS="--kind written"
	@$(MUTANTS)/bin/python -m tests.mutants $(ONLY) $(ARGUMENTS)

$(MUTANTS)/.ready: requirements/mutants.txt $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(MUTANTS)
	@$(BIN)/uv pip install --quiet --python $(MUTANTS)/bin/python -r requirements/mutants.txt
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(MUTANTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	@touch $@

soak: $(READY) ## read an event hub with processes that are killed at random; ARGUMENTS="--kills 20 --events 5000"
	@$(BIN)/python -m bench.soak $(ARGUMENTS)

cluster: $(READY) ## run the nightly job on a Spark cluster of processes, of which some are killed; takes minutes
	@$(BIN)/python -m pytest -m cluster -v tests/spark_jobs/test_cluster.py

RESOLVE := $(BIN)/uv pip compile -q --universal --no-annotate --generate-hashes --custom-compile-command 'make lock'
LOCK := $(RESOLVE) --python-version 3.11
EXTRAS := local amqp backtest sql
lock: $(READY) ## resolve requirements/*.in, and the group of pyproject.toml, to requirements/*.txt, with hashes
	$(LOCK) requirements/app.in -o requirements/app.txt >/dev/null
	$(LOCK) requirements/app.in spark_jobs/requirements.txt $(EXTRAS:%=requirements/%.in) --group dev -c requirements/app.txt -o requirements/dev.txt >/dev/null
	$(LOCK) spark_jobs/requirements.txt -c requirements/dev.txt -o requirements/spark.txt >/dev/null
	for extra in local amqp sql mutants node; do $(LOCK) requirements/$$extra.in -c requirements/dev.txt -o requirements/$$extra.txt >/dev/null; done
	$(RESOLVE) --python-version 3.13 --no-deps requirements/host.in -o requirements/host.txt >/dev/null

clean: ## remove everything that setup and runs created
	rm -rf .venv .local local/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
