/* The library's half of the lease: one per GPU, held by one tenant at a time; launches happen inside it.
 *
 * `gpu` is the index in the limits page. `key` tells kinds of work apart for the estimate of their duration: a
 * CUfunction, a graph exec, or a constant for copies and memsets.
 */
#ifndef MILLIGPU_LEASE_H
#define MILLIGPU_LEASE_H

#include <cuda.h>
#include <stdint.h>

/* Once per process, after the pages were opened. 0, or an errno value: then there must be no device. */
int lease_start(void);

/* Before work is handed to the driver: waits until it may be. Every enter is followed by its leave. */
void lease_enter(unsigned gpu, const void *key, uint64_t bytes);

/* After it was handed over (`launched`), or was refused by the driver (not `launched`). */
void lease_leave(unsigned gpu, const void *key, CUstream stream, int launched);

/* This process just synchronised with everything it had on this GPU: nothing of it is outstanding. */
void lease_idle(unsigned gpu);

#endif
