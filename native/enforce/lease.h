/* The library's half of the lease. Each GPU has one lease, one tenant holds it at a time, and launches happen inside
 * it.
 *
 * `gpu` is the index in the limits page.
 */
#ifndef MILLIGPU_LEASE_H
#define MILLIGPU_LEASE_H

#include <cuda.h>
#include <stdint.h>

#include "milligpu/pages.h"

/* The driver functions that the lease needs. */
struct lease_driver {
    CUresult (*event_create)(CUevent *, unsigned);
    CUresult (*event_destroy)(CUevent);
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

/* Call once per process, after the pages are opened. The caller keeps page, path and driver alive. */
void lease_start(const struct mg_limits_page *page, const char *folder, const struct lease_driver *driver);

/* A piece of work on its way to the driver. The caller sets `key` and `bytes`; enter and leave use the rest. */
struct lease_work {
    uint64_t key;   /* pace_key of the work: the kind by which durations are estimated */
    uint64_t bytes; /* size of a copy or memset, else 0 */
    int64_t estimate;
    int64_t entered; /* when it was admitted */
    int unknown;     /* its kind has not been measured */
    uint64_t joined; /* not 0: it was counted before the launch (outstanding.h) */
};

/* Call before work is handed to the driver: waits until it may launch. Every enter is followed by a leave. */
void lease_enter(unsigned gpu, struct lease_work *work);

/* Call after the work was handed over (`launched`), or the driver refused it (not `launched`). The per-thread default
 * stream is CU_STREAM_PER_THREAD here, never null. */
void lease_leave(unsigned gpu, struct lease_work *work, CUstream stream, int launched);

/* Whether a launch into this stream is captured: it does not run, so it needs no lease. */
int lease_is_captured(CUstream stream);

/* Call before a capture begins, and after one ended or did not begin. */
void lease_capture_begins(void);
void lease_capture_ends(void);

/* Call before a stream or a context is destroyed. With a null context: every context of `gpu`. */
void lease_stream_ends(CUstream stream);
void lease_context_ends(CUcontext context);
void lease_gpu_ends(unsigned gpu);

/* Call after this process synchronized with something on this GPU: a good moment to check what is still outstanding. */
void lease_idle(unsigned gpu);

#endif
