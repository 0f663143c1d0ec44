# One door for developers. `make` alone lists what there is.

CARGO ?= cargo
# `make install`: the usual variables, and `release` or `dev`.
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
UNITDIR ?= $(PREFIX)/lib/systemd/system
MANDIR ?= $(PREFIX)/share/man
DATADIR ?= $(PREFIX)/share
PROFILE ?= release
BUILT = $(or $(CARGO_TARGET_DIR),target)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# The number of the C interface: grows when programs have to be built anew. crates/dss/build.rs has it too.
DSS_SOVERSION = 0

.PHONY: help test check docs fix bench bench-compare bench-peers cluster test-tools test-upgrade dss dss-header install dist test-dist test-long deb wheel client-msrv client-minimal image chaos soak cycles sim

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Most tests wait for processes, not for processors: more of them than cores run at a time.
TEST_THREADS ?= 4
test: test-tools ## every test but the long ones, installing what they need
	RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --workspace --locked
	$(CARGO) test --locked -p leasehold-lab --features planted --test sim --test planted
	$(CARGO) test --locked -p leasehold-core --features planted --test exhaustive every_planted

test-long: test-tools ## the tests that take minutes each (see CONTRIBUTING.md)
	$(CARGO) test --locked -p leasehold --test access -- --ignored
	SEEDS=300 $(CARGO) test --locked -p leasehold-lab --features planted --test sim
	CLAIMS=5 $(CARGO) test --locked -p leasehold-core --test exhaustive -- --nocapture

check: ## formatting, lints, documentation, spelling, links, licences and sources of crates, without a warning; changes nothing
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --locked -p leasehold-lab --features planted --all-targets -- -D warnings
	$(CARGO) clippy --locked -p leasehold-core --features planted --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	scripts/check-docs
	scripts/deny

docs: ## these pages as a site with search, below target/site; links that lead nowhere fail it
	scripts/docs

fix: ## format, and let clippy mend what it can
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

bench: ## the service against this machine's own limits (see docs/benchmarks.md)
	$(CARGO) run --release --locked -- bench report --serve

BENCH_DIR ?= $(or $(CARGO_TARGET_DIR),target)
# NEW_BINARY: this tree, unless told otherwise. ROUNDS: of each row. CLAIMS=0 leaves the memory row out.
NEW_BINARY ?= $(or $(CARGO_TARGET_DIR),target)/release/leasehold
ROUNDS ?= 9
CLAIMS ?= 1000000
bench-compare: ## OLD_BINARY=FILE against this tree in alternating rounds; fails where it is worse by more than 3 %
	@test -x "$(OLD_BINARY)" || { echo "usage: make bench-compare OLD_BINARY=FILE [NEW_BINARY=FILE]" >&2; exit 2; }
	$(CARGO) build --release --locked
	$(or $(CARGO_TARGET_DIR),target)/release/leasehold bench compare --old $(OLD_BINARY) --new $(NEW_BINARY) \
	    --rounds $(ROUNDS) --claims $(CLAIMS) --dir $(BENCH_DIR)

# QUICK=1: three minutes instead of nine. BENCH_OUT=FILE: the figures as JSON.
# BENCH_DIR: the disk that everybody writes to.
bench-peers: ## the service beside etcd, redis, zookeeper and postgresql, in one run (see docs/benchmarks.md)
	@scripts/install-bench-peers
	$(CARGO) build --release --locked -p leasehold -p leasehold-bench --bins
	QUICK=$(QUICK) BENCH_OUT=$(BENCH_OUT) $(or $(CARGO_TARGET_DIR),target)/release/leasehold-peers \
	    $(or $(CARGO_TARGET_DIR),target)/release/leasehold $(BENCH_DIR) docs/images/growth.svg

# Wall clocks jump where Debian's `faketime` is installed.
FAKETIME = $(firstword $(wildcard /usr/lib/*/faketime/libfaketimeMT.so.1))
MINUTES ?= 5
NODES ?= 3
chaos: ## random faults on real nodes for MINUTES=5, with NODES=3 (see docs/reliability.md)
	$(CARGO) build --release --locked
	$(CARGO) run --locked -p leasehold-lab --bin chaos -- --binary $(or $(CARGO_TARGET_DIR),target)/release/leasehold \
	    --minutes $(MINUTES) --nodes $(NODES) $(if $(SEED),--seed $(SEED)) $(if $(FAKETIME),--faketime $(FAKETIME))

soak: ## an hour (MINUTES=60) of mixed load with faults; memory and descriptors must stay flat (see docs/reliability.md)
	$(CARGO) build --release --locked
	$(CARGO) run --locked -p leasehold-lab --bin chaos -- --binary $(or $(CARGO_TARGET_DIR),target)/release/leasehold \
	    --pace soak --minutes $(if $(filter command line,$(origin MINUTES)),$(MINUTES),60) --nodes $(NODES) \
	    $(if $(SEED),--seed $(SEED)) $(if $(FAKETIME),--faketime $(FAKETIME))

# Release 0.1.0. What it wrote and says to its peers must stay readable for as long as it may be upgraded from.
OLD_RELEASE = 1d90865
OLD = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/upgrade
test-upgrade: ## three nodes of release 0.1.0 are upgraded under load, one by one, and taken back (see docs/operations.md)
	rm -rf $(OLD)/source && mkdir -p $(OLD)/source
	git archive $(OLD_RELEASE) | tar -x -C $(OLD)/source
	cd $(OLD)/source && CARGO_TARGET_DIR=$(OLD)/build $(CARGO) build --locked -p leasehold --bin leasehold
	$(CARGO) build --locked -p leasehold --bin leasehold
	$(CARGO) run --locked -p leasehold-lab --bin upgrade -- --old $(OLD)/build/debug/leasehold \
	    --new $(or $(CARGO_TARGET_DIR),target)/debug/leasehold

cycles: ## a million claims made and released on NODES=3; memory and descriptors must stay flat
	$(CARGO) build --release --locked
	$(CARGO) run --locked -p leasehold-lab --bin cycles -- --binary $(or $(CARGO_TARGET_DIR),target)/release/leasehold \
	    --nodes $(NODES)

SEEDS ?= 300
# FIRST_SEED=m repeats a run; without it the seeds are new ones, and printed.
sim: ## a whole cluster in one thread, SEEDS=300 times from FIRST_SEED=m, and all seeds that ever failed
	$(CARGO) run --locked -p leasehold-lab --features sim --bin sim -- --seeds $(SEEDS) \
	    $(if $(FIRST_SEED),--first-seed $(FIRST_SEED),--once-failed)

cluster: ## three nodes on 127.0.0.1:4081, 4082 and 4083, with fresh data, until interrupted
	$(CARGO) build --release --locked
	@scripts/cluster $(or $(CARGO_TARGET_DIR),target)/release/leasehold

test-tools: ## install the programs that tests run, where they are missing
	@scripts/install-test-tools

dss: ## the C library of the typed locks, shared and static
	$(CARGO) build --locked --profile $(PROFILE) -p leasehold-dss --lib

dss-header: ## write crates/dss/include/leasehold_dss.h anew from the source
	LEASEHOLD_WRITE_HEADER=1 $(CARGO) test --locked -p leasehold-dss --test header

install: ## the command, its manual, the C library, its header and its pkg-config file, below DESTDIR and PREFIX
	$(CARGO) build --locked --profile $(PROFILE) -p leasehold -p leasehold-dss --bin leasehold --lib
	DESTDIR=$(DESTDIR) BINDIR=$(BINDIR) DATADIR=$(DATADIR) MANDIR=$(MANDIR) UNITDIR=$(UNITDIR) \
	    scripts/install-files $(BUILT)/leasehold
	install -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(PKGCONFIGDIR)
	strip --strip-debug -o $(DESTDIR)$(LIBDIR)/libleasehold_dss.so.$(VERSION) $(BUILT)/libleasehold_dss.so
	ln -sf libleasehold_dss.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libleasehold_dss.so.$(DSS_SOVERSION)
	ln -sf libleasehold_dss.so.$(DSS_SOVERSION) $(DESTDIR)$(LIBDIR)/libleasehold_dss.so
	strip --strip-debug -o $(DESTDIR)$(LIBDIR)/libleasehold_dss.a $(BUILT)/libleasehold_dss.a
	install -m 644 crates/dss/include/leasehold_dss.h $(DESTDIR)$(INCLUDEDIR)/leasehold_dss.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	    -e 's|@VERSION@|$(VERSION)|' crates/dss/leasehold_dss.pc.in > $(DESTDIR)$(PKGCONFIGDIR)/leasehold_dss.pc
	chmod 644 $(DESTDIR)$(PKGCONFIGDIR)/leasehold_dss.pc

# GLIBC_BASELINE=2.28: the oldest glibc that the binary must start with.
DIST = $(or $(CARGO_TARGET_DIR),target)/dist
dist: ## the release below target/dist: binary, symbols, tarball, Debian package, SBOM, image root, checksums (see docs/packages.md)
	binary=$$(scripts/build-release) && scripts/package "$$binary" $(DIST)
	scripts/check-release $(DIST)

test-dist: dist ## tests of what `make dist` makes, with the release build in the image and in the cluster of the manifests
	LEASEHOLD_DIST=$(abspath $(DIST)) $(CARGO) test --locked -p leasehold --test packages

test-long: test-dist

deb: dist ## a Debian package of the release binary, below target/dist

wheel: dist ## a Python wheel with the release binary in it, below target/wheels (see docs/packages.md)
	scripts/build-wheel $(DIST) $(dir $(DIST))wheels

client-msrv: ## the Rust client with the oldest compiler that it promises to work with
	scripts/check-client msrv

client-minimal: ## the Rust client with the lowest versions of its dependencies
	scripts/check-client minimal

image: dist ## a container image of the release binary, with docker or buildah
	scripts/build-image $(DIST)/image leasehold:$(VERSION)
