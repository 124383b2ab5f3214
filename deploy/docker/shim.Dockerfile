# make build && docker build -f deploy/docker/shim.Dockerfile -t heapwire/shim:dev .
FROM debian:stable-slim
COPY bin/libheapwire.so bin/libheapwire_inproc.so /opt/heapwire/
COPY bin/heapwire-python /opt/heapwire/heapwire-python
