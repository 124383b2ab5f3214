/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEAPWIRE_INPROC_H
#define HEAPWIRE_INPROC_H

/* Starts to export what comes into the spool to the sinks that the environment names, as it was when the library was loaded.
 * say, if not NULL, gets lines to be shown to people, without their newline, from any thread. Call it once. All threads of the
 * library's have the caller's signal mask, its table of descriptors and, until they give themselves another, its name. shared: a
 * forked child has a copy of that table, and closes there what would keep claims.
 *
 * hide, if not NULL, is called in each thread of the library's that is about to make another: what that allocates stays.
 *
 * 0: started; 1: the environment names no sink; 2: failed, and say was told why; 3: not in this process (forked, or started
 * before). */
int heapwire_inproc_start(const char *spool, void (*say)(const char *line), int shared, void (*hide)(void));

/* Delivers what is left for timeout_ms at most and stops. Does nothing in a forked child, or without a start. */
void heapwire_inproc_stop(int timeout_ms);

#endif
