/* The library's half of the lease: one per GPU, held by one tenant at a time; launches happen inside it.
 *
 * `gpu` is the index in the limits page. `key` tells kinds of work apart for the estimate of their duration: a
 * CUfunction, a graph exec, or a constant for copies and memsets.
 */
#ifndef MILLIGPU_LEASE_H
#define MILLIGPU_LEASE_H

#include <cuda.h>
#include <stdint.h>

#include "milligpu/pages.h"

/* What the lease needs of the driver. */
struct lease_driver {
    CUresult (*event_create)(CUevent *, unsigned);
    CUresult (*event_record)(CUevent, CUstream);
    CUresult (*event_query)(CUevent);
    CUresult (*event_elapsed)(float *, CUevent, CUevent);
    CUresult (*stream_context)(CUstream, CUcontext *);
    CUresult (*stream_capturing)(CUstream, CUstreamCaptureStatus *);
    CUresult (*capture_mode)(CUstreamCaptureMode *);
    CUresult (*context_get)(CUcontext *);
    CUresult (*context_push)(CUcontext);
    CUresult (*context_pop)(CUcontext *);
};

/* Once per process, after the pages were opened; the page, the folder's path and the driver stay the caller's. */
void lease_start(const struct mg_limits_page *page, const char *folder, const struct lease_driver *driver);

/* Before work is handed to the driver: waits until it may be. Every enter is followed by its leave. `bytes`: of a
 * copy or memset, else 0. */
void lease_enter(unsigned gpu, const void *key, uint64_t bytes);

/* After it was handed over (`launched`), or was refused by the driver (not `launched`). The per-thread default stream
 * is CU_STREAM_PER_THREAD here, never null. */
void lease_leave(unsigned gpu, const void *key, uint64_t bytes, CUstream stream, int launched);

/* This process just synchronised with something on this GPU: a good moment to see what is still outstanding. */
void lease_idle(unsigned gpu);

#endif
