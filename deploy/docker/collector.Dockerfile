# make collector && docker build -f deploy/docker/collector.Dockerfile -t heapwire/otelcol-heapwire:dev .
FROM debian:stable-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY bin/otelcol-heapwire /otelcol-heapwire
ENTRYPOINT ["/otelcol-heapwire"]
