/* The work that this process has on one GPU, and when it ends, measured with CUDA events.
 *
 * An event behind every launch would cost more than the launch, so launches are put together in batches. An event marks
 * the end of a batch. It is recorded right behind the batch's last launch, by the thread that launched, or not at all:
 * later, the stream may have been destroyed, or be captured, and an event in the default stream would order work that
 * is independent. The end of a batch without an event is estimated.
 *
 * A batch holds launches of all streams; on a busy GPU the time between two marks is the time that the launches between
 * them took. Not thread-safe: the owner has a lock.
 */
#ifndef MILLIGPU_OUTSTANDING_H
#define MILLIGPU_OUTSTANDING_H

#include "lease.h"
#include "pace.h"

enum { BATCHES = 64, BATCH_KINDS = 16, SPARE_EVENTS = 128, STREAM_CONTEXTS = 16 };

struct batch {
    CUevent event; /* null: only the estimate says when it ends */
    CUcontext context;
    int sampled; /* its duration is measured */
    int follows; /* it began when the batch before it ended */
    int first;   /* it began on an idle GPU */
    uint32_t pieces, unknown;
    int64_t estimate;
    int64_t submitted;
    int64_t seen_running; /* when it was last found unfinished */
    unsigned kinds;       /* further kinds count in the estimate and are not learned */
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
    struct batch open; /* not marked by an event yet; empty if it has no pieces */
    struct marked {
        CUevent event;
        CUcontext context;
    } spare[SPARE_EVENTS], last;
    unsigned spares;
    uint64_t batches; /* so far */
    uint64_t removed; /* how often something was removed; also read without the lock */
    struct {
        CUstream stream;
        CUcontext context;
    } streams[STREAM_CONTEXTS];
    int64_t ended; /* when the last work ended; 0 while there is some */
};

enum mark {
    MARK,        /* when the batch is large enough */
    MARK_NOW,    /* nothing may follow in this lease */
    MARK_UNSEEN, /* as MARK; a stream is being captured, so events may not be looked at */
};

/* Add one piece that was launched. A batch that holds `size` nanoseconds of work is large enough. */
void outstanding_add(struct outstanding *all, const struct lease_work *work, CUstream stream, int64_t size,
                     enum mark mark);

/* Add a piece that is about to be launched, if it needs no event. It is joined until
 * something is removed: then it may have been taken for work that has ended. Returns whether it was added. */
int outstanding_join(struct outstanding *all, struct lease_work *work, int64_t size);
static inline int outstanding_is_joined(const struct outstanding *all, const struct lease_work *work)
{
    return work->joined == __atomic_load_n(&all->removed, __ATOMIC_RELAXED) + 1;
}

/* It was not launched. */
void outstanding_withdraw(struct outstanding *all, const struct lease_work *work);

/* How thoroughly to look. */
enum look {
    LOOK,       /* at the oldest batch, and at the next if it has ended */
    LOOK_ALL,   /* at every batch: streams run side by side */
    LOOK_FRESH, /* as LOOK; the caller just waited for all work, so it ended now and not long ago */
};

/* Remove what has ended. */
void outstanding_look(struct outstanding *all, int64_t now, enum look how);

/* A stream ends. */
void outstanding_end_stream(struct outstanding *all, CUstream stream);

/* A context ends, or (null) every context of this GPU: destroy the events in it. The end of its work is estimated. */
void outstanding_end_context(struct outstanding *all, CUcontext context);

#endif
