#ifndef HW_OTELCTX_H
#define HW_OTELCTX_H

/* Publishes the process's identity for OpenTelemetry's external readers, if HEAPWIRE_OTEL_CTX asks for it, and again in
 * each forked child. In the constructor, when the interpreter's version is known. */
void hw_otelctx_init(void);

#endif
