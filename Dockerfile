# docker build -t leasehold .
# docker run -p 127.0.0.1:4080:4080 -v leasehold:/data leasehold serve --insecure
# Clients of the older lock server look for port 8888: add -p 127.0.0.1:8888:4080.
FROM rust:1.95-slim-bookworm AS build
# The allocator is built from C.
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p leasehold && strip target/release/leasehold && install -d -m 700 /data

# libc and nothing else: no shell, no package manager, an unprivileged user.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/leasehold /usr/bin/leasehold
COPY --from=build --chown=nonroot:nonroot /data /data
USER nonroot
VOLUME /data
EXPOSE 4080
# It refuses to start until it is told who may do what (docs/security.md), or `--insecure`.
ENV LEASEHOLD_LISTEN=0.0.0.0:4080 LEASEHOLD_DATA=/data
ENTRYPOINT ["/usr/bin/leasehold"]
CMD ["serve"]
