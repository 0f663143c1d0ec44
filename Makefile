# One door for developers. `make` alone lists what there is.

CARGO ?= cargo

.PHONY: help test check fix bench test-tools

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: test-tools ## every test, installing what they need
	$(CARGO) test --workspace --locked

check: ## formatting, lints and documentation, without a warning; changes nothing
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

fix: ## format, and let clippy mend what it can
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

bench: ## the service against this machine's own limits (see docs/benchmarks.md)
	$(CARGO) run --release --locked -- bench report --serve

test-tools: ## install the programs that tests run, where they are missing
	@scripts/install-test-tools
