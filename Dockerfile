# `make image` builds it from what `make dist` has made; nothing is fetched:
#   docker build -t leasehold -f Dockerfile target/dist/image      (or buildah bud)
#   docker run -p 127.0.0.1:4080:4080 -v leasehold:/data leasehold serve --insecure
# Clients of the older lock server look for port 8888: add -p 127.0.0.1:8888:4080.
FROM scratch
# The command, libc, certificate authorities: scripts/image-root lays them out. No shell, no package manager.
COPY root /
COPY --chown=65532:65532 data /data
USER 65532:65532
VOLUME /data
EXPOSE 4080 4090
# It refuses to start until it is told who may do what (docs/security.md), or `--insecure`.
ENV LEASEHOLD_LISTEN=0.0.0.0:4080 LEASEHOLD_DATA=/data
ENTRYPOINT ["/usr/bin/leasehold"]
CMD ["serve"]
