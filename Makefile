# Everything sets itself up in .venv; nothing else is needed but Python 3.11+ (and Java 17 for Spark).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: upgrade-check venv demo test dist tidy simulate power scale model-check spin strace crash-points chromium kafka mutants fuzz bench bench-report bench-check yardstick bench-scaling peers bench-peers chaos soak images images-check containers helm manifests pages lock clean help

help:
	@echo "make demo      a cluster of real processes takes records, loses a leader, loses nothing; Spark reads the result"
	@echo "make test      everything that CI checks"
	@echo "make venv      .venv with everything; .venv/bin/tidelog is the command"
	@echo "make dist      wheel and source distribution in dist/"
	@echo "make tidy      style, types, dependency rules"
	@echo "make simulate SEEDS=1000 [FIRST=0] [RECORD=1] [MAJORITY=1]  the deterministic simulation over many seeds, on all cores"
	@echo "make power [LOSSES=10000]   power losses of all replica servers, with unsynced writes in any order"
	@echo "make scale [PARTITIONS=10000]   what a large simulated cluster costs: messages, bytes, operations"
	@echo "make model-check [MINUTES=10]   the larger searches of design and cores, and random walks for so long"
	@echo "make crash-points   the power is lost at each system call of the real disk, over 20 recorded runs"
	@echo "make upgrade-check [BASE=revision]   a cluster of an earlier revision is upgraded to this one under load"
	@echo "make fuzz [MINUTES=10]   hostile bytes at everything that reads a stranger's"
	@echo "make chaos [MINUTES=10] [SEED=1] [FAULT=name] [SPARK=1] [LINKS=proxies] [OLD=revision] [HOLD=seconds]   faults against a cluster of real processes; a report in chaos.html"
	@echo "make soak [MINUTES=60] [SEED=1]   the same for long with Spark, and what every process takes; a report in soak.html"
	@echo "make mutants   every rule broken on purpose: who notices?"
	@echo "make bench     throughput and latency of the whole path"
	@echo "make bench-report [CASE=128k]   where the time of a case goes: shares and flame graphs in flame.html, messages and turns of each batch"
	@echo "make bench-check [BASE=revision]   has it become slower than an earlier revision? (default: than before the last change of sources)"
	@echo "make yardstick   beside the least that it has to do: the same batches over bare TCP, written by as many processes"
	@echo "make bench-scaling [OUT=docs/plots]   how throughput and memory grow: tables, and plots in build/scaling"
	@echo "make peers     Kafka, NATS JetStream and Liftbridge into build/peers, from Maven Central, the Go module proxy and PyPI"
	@echo "make bench-peers [ROUNDS=5]   Tidelog beside them: one table, figures.json and plots in build/peers"
	@echo "make kafka     Kafka's jars alone, for the tests of the import from Kafka"
	@echo "make images [BASE=debian]   the images of the services, and one for a trial, with buildah; BASE: another base, or one of Debian's packages"
	@echo "make images-check [BASE=debian]   images are built and run as the composition says; containers are lost, and no record"
	@echo "make manifests   write deploy/kubernetes from the chart in deploy/helm"
	@echo "make pages     write the pages of docs/ that come from the code"
	@echo "make lock      renew constraints.txt and what images install, from pyproject.toml"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tidelog needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/tidelog demo

# On all cores, up to the number at which the tests with real processes, which one worker runs alone, take the longest.
test: $(STAMP) spin strace chromium kafka helm
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

dist: $(STAMP)
	$(BIN)/python -m hatchling build

# The design model needs spin and a C compiler; where they cannot be had its tests are skipped, and say so.
spin:
	@{ command -v spin && command -v gcc; } >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update && apt-get install -y --no-install-recommends spin gcc libc6-dev; } >/dev/null 2>&1 || \
	echo "spin or gcc is missing and cannot be installed here: the design model is not checked (apt-get install spin gcc)"

# The power losses of the real disk need strace; where it cannot be had their tests are skipped, and say so.
strace:
	@command -v strace >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update && apt-get install -y --no-install-recommends strace; } >/dev/null 2>&1 || \
	echo "strace is missing and cannot be installed here: the real disk is not checked (apt-get install strace)"

# Node comes with the environment; the tests of the JavaScript client in a browser need Chromium and are skipped without it.
chromium:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable; } >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 || \
	echo "chromium is missing and cannot be installed here: the JavaScript client is not tested in a browser (apt-get install chromium)"

# The import from Kafka is tested with a real one, of which Maven fetches the jars; without them these tests are skipped.
kafka:
	@[ -e $(PEERS)/kafka/fetched ] || \
	{ command -v mvn && command -v java && $(MAKE) $(PEERS)/kafka/fetched; } >/dev/null 2>&1 || \
	echo "Kafka is missing and cannot be fetched here: the import is tested with a mock only (apt-get install maven)"

tidy: $(STAMP)
	$(BIN)/python -m pytest tests/test_tidy.py

SEEDS ?= 1000
FIRST ?= 0
simulate: $(STAMP)
	cd tests && ../$(BIN)/python -m simulation --seeds $(FIRST):$$(($(FIRST) + $(SEEDS))) $(if $(MAJORITY),--majority) $(if $(JOBS),--jobs $(JOBS)) $(if $(RECORD),--record)
	cd tests && ../$(BIN)/python -m simulation --seeds $(FIRST):$$(($(FIRST) + $(SEEDS) / 10)) --bytes $(if $(JOBS),--jobs $(JOBS)) $(if $(RECORD),--record)

power: $(STAMP)
	cd tests && ../$(BIN)/python -m simulation.power $(if $(LOSSES),--losses $(LOSSES)) $(if $(JOBS),--jobs $(JOBS))

scale: $(STAMP)
	cd tests && ../$(BIN)/python -m simulation.scale $(if $(PARTITIONS),--partitions $(PARTITIONS))

MINUTES ?= 10
fuzz: $(STAMP)
	cd tests && ../$(BIN)/python -m support.fuzz_targets --minutes $(MINUTES)

upgrade-check: $(STAMP)
	$(BIN)/python tests/real/upgrade_check.py $(if $(BASE),--base $(BASE))

model-check: $(STAMP) spin
	cd tests && ../$(BIN)/python -m model.spin
	cd tests && ../$(BIN)/python -m model.search --large
	cd tests && ../$(BIN)/python -m model.raft_search --large
	cd tests && ../$(BIN)/python -m model.walks --seeds 1000000: --minutes $(MINUTES)

crash-points: $(STAMP) strace
	cd tests && ../$(BIN)/python -m crash_points $(if $(JOBS),--jobs $(JOBS))
	cd tests && ../$(BIN)/python -m crash_points.store $(if $(JOBS),--jobs $(JOBS))

mutants: $(STAMP) spin strace
	cd tests && ../$(BIN)/python -m mutants $(if $(JOBS),--jobs $(JOBS))
	cd tests && ../$(BIN)/python -m model.mutants

bench: $(STAMP)
	$(BIN)/python deploy/bench/throughput.py

CASE ?= 128k
bench-report: $(STAMP)
	$(BIN)/python deploy/bench/profile/flame.py --case $(CASE)
	$(BIN)/python deploy/bench/profile/messages.py --case $(CASE)

bench-check: $(STAMP)
	$(BIN)/python deploy/bench/regression/check.py $(if $(BASE),--base $(BASE))

yardstick: $(STAMP)
	$(BIN)/python deploy/bench/profile/yardstick.py

OUT ?= build/scaling
bench-scaling: $(STAMP)
	$(BIN)/python deploy/bench/scaling/run.py --out $(OUT) --json $(OUT)/figures.json

# What Tidelog is measured against. It takes Maven (apt-get install maven), Java 17, and Go 1.24 or newer; nothing of it is
# committed. The module proxy need not pass on the checksum database.
PEERS := build/peers
GO_PEERS := GOFLAGS="-mod=mod -modcacherw" GONOSUMDB="github.com/liftbridge-io/*,github.com/nats-io/*"
peers: $(STAMP) $(PEERS)/kafka/fetched $(PEERS)/bin/nats-server $(PEERS)/bin/nats $(PEERS)/liftbridge/api_pb2.py

$(PEERS)/kafka/fetched: deploy/bench/peers/kafka.pom.xml
	@command -v mvn >/dev/null || { echo "Kafka's jars are fetched by Maven: apt-get install maven"; exit 1; }
	rm -rf $(@D)
	mvn --batch-mode --quiet --file $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(PEERS)/kafka
	@touch $@

$(PEERS)/bin/%: deploy/bench/peers/%.mod
	@command -v go >/dev/null || { echo "NATS and Liftbridge are built with Go: https://go.dev/dl or apt-get install golang"; exit 1; }
	@mkdir -p $(PEERS)/$*
	cp $< $(PEERS)/$*/go.mod
	cd $(PEERS)/$* && $(GO_PEERS) GOBIN=$(CURDIR)/$(PEERS)/bin go install tool
	@touch $@

$(PEERS)/venv/installed: deploy/bench/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)/venv
	$(PEERS)/venv/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(PEERS)/liftbridge/api_pb2.py: $(PEERS)/bin/liftbridge $(PEERS)/venv/installed
	api=$$(cd $(PEERS)/liftbridge && $(GO_PEERS) go list -m -f '{{.Dir}}' github.com/liftbridge-io/liftbridge-api) && \
	$(PEERS)/venv/bin/python -m grpc_tools.protoc -I $$api --python_out=$(@D) --grpc_python_out=$(@D) $$api/api.proto

bench-peers: ROUNDS = 5
bench-peers: peers
	$(BIN)/python deploy/bench/peers --rounds $(ROUNDS)

# Hosts and disks of their own take root; without it those faults are left out, and the report says so.
SEED ?= 1
chaos: $(STAMP)
	$(BIN)/python deploy/chaos --seed $(SEED) --report chaos.html $(if $(SPARK),--spark) $(if $(LINKS),--links $(LINKS)) $(if $(OLD),--old $(OLD)) $(if $(HOLD),--hold $(HOLD)) $(if $(FAULT),--fault $(FAULT),--minutes $(MINUTES))

soak: MINUTES = 60
soak: $(STAMP)
	$(BIN)/python deploy/chaos --soak --spark --seed $(SEED) --report soak.html --minutes $(MINUTES)

images: $(STAMP)
	$(BIN)/python deploy/images/build.py $(if $(BASE),--base $(BASE))

# In mount namespaces of their own: nothing stays mounted. What is built stays in build/images, for the next time.
images-check: BASE = debian
images-check: $(STAMP) containers
	unshare --mount $(BIN)/python deploy/images/build.py --base $(BASE) --storage build/images
	$(BIN)/python tests/containers/check.py --storage build/images

CONTAINERS := buildah podman runc netavark aardvark-dns iptables iproute2 catatonit mmdebstrap
containers:
	@{ command -v buildah && command -v podman && command -v runc && command -v catatonit && command -v mmdebstrap; } >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update && apt-get install -y --no-install-recommends $(CONTAINERS); } >/dev/null 2>&1 || \
	{ echo "images are built and run by programs that cannot be installed here: apt-get install $(CONTAINERS)"; exit 1; }

# The chart is rendered and checked with Helm, which Go builds; where it cannot be had these tests are skipped, and say so.
HELM := build/bin/helm
HELM_VERSION := v3.22.0
helm:
	@[ -e $(HELM) ] || \
	GOBIN=$(CURDIR)/build/bin go install -ldflags "-s -w" helm.sh/helm/v3/cmd/helm@$(HELM_VERSION) >/dev/null 2>&1 || \
	echo "Helm cannot be built here: the chart is not checked (it takes Go: https://go.dev/dl)"

manifests: $(STAMP) helm
	$(BIN)/python deploy/helm/render.py

pages: $(STAMP)
	$(BIN)/python deploy/generate

LOCKED := --quiet --generate-hashes --python-version 3.11 --universal --no-header
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet "uv>=0.8,<0.14"
	$(BIN)/uv pip compile $(LOCKED) --upgrade --extra dev --output-file constraints.txt pyproject.toml
	$(BIN)/uv pip compile $(LOCKED) --constraint constraints.txt --extra server --extra security --extra oidc --output-file deploy/docker/requirements.txt pyproject.toml
	echo hatchling | $(BIN)/uv pip compile $(LOCKED) --constraint constraints.txt --output-file deploy/docker/build-requirements.txt -

clean:
	rm -rf .venv build dist
