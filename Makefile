# Everything a fresh clone needs: `make demo` (see it work), `make test` (what CI asks: formatting, lint, types, tests).
# Each target sets up .venv first, once: `runtime` is what edgeagent needs to run, `setup` adds the tools of the tests.

PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PYTEST_ARGS ?=
# Test files run side by side in so many processes. They wait for timers and for each other's processes half of the
# time, so four keep two cores busy.
TEST_PROCESSES ?= 4
SIDE_BY_SIDE = -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help runtime setup demo cluster-demo cluster-figures answer-figures check-cluster test test-install test-slow test-clients test-page page-figures pictures mutants soak attack check format documents docs hooks golden eval-builtin dist bundle clean

help:
	@echo "make demo          set up what runs, start the daemon with the bundled model, hold a short conversation"
	@echo "make test          set up everything; formatting, lint, types, the program's size, every test but the slow ones"
	@echo "make test-slow     storms, a daemon killed 200 times, many seeds: minutes to an hour; PYTEST_ARGS='-k random_moments'"
	@echo "make test-install  the packages in clean roots: installed, asked, upgraded, removed; Debian, as root; ARGS='--only deb'"
	@echo "make soak          half an hour of mixed load with faults; MINUTES=5 for less"
	@echo "make attack        every attack beside a stream: its largest gap, and the memory afterwards; five quiet minutes"
	@echo "make test-clients  other people's clients against a real daemon; Node.js 20 is needed; ARGS='--only pipecat', '--optional'"
	@echo "make test-page     the page in a headless Chromium (Debian: apt-get install chromium); PAGE_SCREENSHOTS=FOLDER keeps pictures"
	@echo "make page-figures  first paint, size, frames, memory and first tokens of the page, measured: two minutes; a quiet machine"
	@echo "make pictures      the pictures of README in docs/pictures, from a real daemon; Chromium as for test-page"
	@echo "make cluster-demo  two real vLLM workers, a router and a proxy on this machine; requests go there while each part is made to fail"
	@echo "make cluster-figures failover and overflow with real daemons, llama-server and vLLM, measured: a quarter of an hour; a quiet machine"
	@echo "make answer-figures measure kept and similar answers (two hours, on a quiet machine)"
	@echo "make check-cluster everything in packaging/cluster, read by the tools of its own ecosystem"
	@echo "make mutants       which of 400 faults planted in the source no test notices: about an hour; SAMPLE=60, SEED=2"
	@echo "make check         the same as make test"
	@echo "make format        format and fix what can be fixed"
	@echo "make documents     what docs/ has from the code: openapi.json, asyncapi.json and the pages of docs/reference"
	@echo "make docs          the site of docs/, built strictly into site/"
	@echo "make hooks         checks before each commit: ruff, mypy, codespell, words that have confused readers"
	@echo "make golden        the golden files of event sequences, from what is sent now; look at what changed"
	@echo "make eval-builtin  measure the bundled model on prompts it was not trained on"
	@echo "make runtime       .venv with what edgeagent needs to run; a portable engine if one is in reach, else a compiled one"
	@echo "make setup         .venv with everything in it, the tools of the tests too; with CMAKE_ARGS llama.cpp is compiled:"
	@echo "                   CMAKE_ARGS=-DGGML_CUDA=on for an NVIDIA GPU, CMAKE_ARGS= for this CPU only"
	@echo "make dist          dist/: what a release publishes, with checksums; ARGS=--twice makes it twice and compares the bytes"
	@echo "make bundle        dist/offline: all wheels for a machine without a network; dist/sbom.cdx.json lists them (CycloneDX)"
	@echo "make clean         remove .venv, dist, site and caches (engines stay in your cache folder)"

runtime:
	@$(PYTHON) packaging/setup_env.py --runtime

setup:
	@$(PYTHON) packaging/setup_env.py

demo: runtime
	@$(BIN)/python packaging/demo.py

# The tests start hundreds of Python processes: compiled modules are kept, even where the environment says not to.
test: export PYTHONDONTWRITEBYTECODE :=
# The order of a set of texts is the same in each run.
test: export PYTHONHASHSEED := 0
# The processes share the cores, and numpy's threads spin while they wait.
test: export OPENBLAS_NUM_THREADS := 1
# pytest comes last: continuous integration reads its closing line. It has a test of the types, which PYTEST_ARGS may
# leave out.
test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.size
	$(if $(PYTEST_ARGS),$(BIN)/mypy)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS)

check: test

test-slow: setup
	$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile full --timeout 3600 $(PYTEST_ARGS)

test-install: setup
	@$(BIN)/python packaging/dist.py python engine offline
	$(BIN)/python -m tests.installation $(ARGS)
	$(BIN)/python packaging/first_token.py --wheels dist/offline

attack: setup
	$(BIN)/python -m tests.peer.attack $(ARGS)

test-clients: setup
	$(BIN)/python -m tests.clients.run $(ARGS)

test-page: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[page]"
	$(BIN)/python -m pytest -m "slow or not slow" tests/page $(PYTEST_ARGS)

pictures: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[page]"
	$(BIN)/python packaging/pictures.py docs/pictures

page-figures: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[page]"
	$(BIN)/python -m tests.peer.page_figures $(ARGS)

cluster-demo: setup
	@$(BIN)/python -m tests.cluster $(ARGS)

cluster-figures: setup
	$(BIN)/python tests/peer/build.py
	$(BIN)/python -m tests.cluster.figures --document docs/figures.md $(ARGS)

answer-figures: setup
	$(BIN)/python -m tests.peer.answers $(ARGS)

check-cluster: setup
	@$(BIN)/python packaging/cluster/check.py

SAMPLE ?= 400
SEED ?= 1
MUTANT_JOBS ?= 2
mutants: setup
	$(BIN)/python -m tests.mutants --sample $(SAMPLE) --seed $(SEED) --jobs $(MUTANT_JOBS)

MINUTES ?= 30
soak: setup
	$(BIN)/python -m tests.peer.soak --minutes $(MINUTES)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: setup
	WRITE_GOLDEN=1 $(BIN)/python -m pytest tests/api/responses/test_events.py tests/api/test_golden.py tests/api/responses/test_routes.py \
		tests/api/responses/socket/test_connection.py tests/api/anthropic/test_messages.py \
		tests/api/wire/test_golden.py tests/conversation/test_compaction.py

documents: setup
	$(BIN)/python -m edgeagent.api.documents docs
	$(BIN)/python packaging/reference.py docs/reference
	$(BIN)/python -m edgeagent.cli.service_files packaging

docs: setup
	$(BIN)/python -m zensical build --strict

dist: setup
	@$(BIN)/python packaging/dist.py $(ARGS)

bundle: setup
	@$(BIN)/python packaging/dist.py python engine offline sbom

hooks: setup
	$(BIN)/pre-commit install

eval-builtin: setup
	$(BIN)/python -m models.builtin.recipe.evaluate

clean:
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
