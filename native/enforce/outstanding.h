/* What this process has on one GPU and when it ends, told by CUDA events.
 *
 * An event on every short kernel would cost more than a tenth of the launch rate, so launches are put together in
 * batches of about 100 us; the last, unfinished batch ends when its estimate says so. Not thread-safe: its owner has
 * a lock.
 */
#ifndef MILLIGPU_OUTSTANDING_H
#define MILLIGPU_OUTSTANDING_H

#include "lease.h"
#include "pace.h"

enum { BATCHES = 64, BATCH_KINDS = 4, SPARE_EVENTS = 128 };

struct batch {
    CUevent event; /* null: only its estimate says when it ends */
    CUcontext context;
    CUstream stream;
    int follows; /* the batch before it was on the same stream and not done: it began when that one ended */
    uint32_t pieces, unknown;
    int64_t estimate;
    int64_t submitted;
    int64_t seen_running; /* when it was last found not done */
    unsigned kinds;
    struct {
        uint64_t key;
        uint64_t count;
        int64_t estimate;
    } of[BATCH_KINDS];
};

struct outstanding {
    const struct lease_driver *driver;
    struct pace pace;
    struct pace_estimates estimates;
    struct batch ring[BATCHES];
    unsigned first, count;
    struct batch open; /* not closed by an event yet; no pieces: there is none */
    struct { CUevent event; CUcontext context; } spare[SPARE_EVENTS], last;
    unsigned spares;
    int64_t ended; /* when the last of it ended; 0 while there is some */
};

/* One piece was launched, when it had been let in. */
void outstanding_add(struct outstanding *all, const struct lease_work *work, CUstream stream);

/* Forget what has ended. `fresh`: the caller just waited for it, so that it ended now and not long ago. */
void outstanding_look(struct outstanding *all, int64_t now, int fresh);

#endif
