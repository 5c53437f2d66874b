/* The library's half of the lease: one per GPU, held by one tenant at a time; launches happen inside it.
 *
 * `gpu` is the index in the limits page.
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

/* A piece of work on its way to the driver. The caller says what it is; the rest is between enter and leave. */
struct lease_work {
    uint64_t key;   /* pace_key of what it is: tells kinds of work apart for the estimate of their duration */
    uint64_t bytes; /* of a copy or memset, else 0 */
    int64_t estimate;
    int64_t entered; /* when it was let in */
    int unknown;     /* its kind has not been measured */
};

/* Before work is handed to the driver: waits until it may be. Every enter is followed by its leave. */
void lease_enter(unsigned gpu, struct lease_work *work);

/* After it was handed over (`launched`), or was refused by the driver (not `launched`). The per-thread default stream
 * is CU_STREAM_PER_THREAD here, never null. */
void lease_leave(unsigned gpu, const struct lease_work *work, CUstream stream, int launched);

/* This process just synchronised with something on this GPU: a good moment to see what is still outstanding. */
void lease_idle(unsigned gpu);

#endif
