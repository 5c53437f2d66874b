#include "outstanding.h"

/* A batch is closed with an event when it holds this much work. */
#define BATCH_NS INT64_C(100000)
/* An end that was seen this much too late is no measurement. */
#define SEEN_LATE_NS INT64_C(50000)

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- events ---- */

static CUevent take_event(struct outstanding *all, CUcontext context) {
    CUevent event = NULL;
    for (unsigned i = all->spares; i-- > 0;) {
        if (all->spare[i].context != context) continue;
        event = all->spare[i].event;
        all->spare[i] = all->spare[--all->spares];
        return event;
    }
    CUcontext current = NULL;
    all->driver->context_get(&current);
    if (current != context && all->driver->context_push(context) != CUDA_SUCCESS) return NULL;
    if (all->driver->event_create(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) event = NULL;
    if (current != context) all->driver->context_pop(&current);
    return event;
}

static void give_event(struct outstanding *all, CUevent event, CUcontext context) {
    if (!event || all->spares == SPARE_EVENTS) return;
    all->spare[all->spares].event = event;
    all->spare[all->spares++].context = context;
}

/* The end of the batch, marked in its stream. A launch that is being captured does not run: nothing to mark. */
static int mark_end(struct outstanding *all, struct batch *batch) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult status = all->driver->stream_capturing(batch->stream, &capturing);
    if (status == CUDA_SUCCESS && capturing != CU_STREAM_CAPTURE_STATUS_NONE) return -1;
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_SUPPORTED) return 0;
    if (all->driver->stream_context(batch->stream, &batch->context) != CUDA_SUCCESS) return 0;
    CUevent event = take_event(all, batch->context);
    if (event && all->driver->event_record(event, batch->stream) == CUDA_SUCCESS) batch->event = event;
    return 0;
}

/* ---- what is there ---- */

static struct batch *newest(struct outstanding *all) {
    return all->count ? &all->ring[(all->first + all->count - 1) % BATCHES] : NULL;
}

/* The running one is the first of the ring, or else the open one. */
static void settle(struct outstanding *all) {
    const struct batch *running = all->count ? &all->ring[all->first] : &all->open;
    all->pace.oldest = running->pieces ? running->estimate : 0;
}

static void subtract(struct outstanding *all, const struct batch *batch) {
    all->pace.pieces -= batch->pieces;
    all->pace.unknown -= batch->unknown;
    all->pace.estimate -= batch->estimate;
}

static void close_batch(struct outstanding *all) {
    if (all->count == BATCHES) return; /* it stays open, and goes on growing */
    struct batch *before = newest(all);
    struct batch batch = all->open;
    all->open.pieces = 0;
    batch.follows = before && before->stream == batch.stream && before->event &&
                    all->driver->event_query(before->event) == CUDA_ERROR_NOT_READY;
    if (mark_end(all, &batch)) subtract(all, &batch);
    else all->ring[(all->first + all->count++) % BATCHES] = batch;
}

static void count_piece(struct batch *batch, const struct lease_work *work) {
    uint64_t count = work->bytes ? work->bytes : 1;
    for (unsigned i = 0; i < batch->kinds; i++) {
        if (batch->of[i].key != work->key) continue;
        batch->of[i].count += count;
        batch->of[i].estimate += work->estimate;
        return;
    }
    batch->of[batch->kinds].key = work->key;
    batch->of[batch->kinds].count = count;
    batch->of[batch->kinds++].estimate = work->estimate;
}

void outstanding_add(struct outstanding *all, const struct lease_work *work, CUstream stream) {
    struct batch *open = &all->open;
    if (open->pieces && (open->stream != stream || work->unknown)) close_batch(all);
    if (!open->pieces) *open = (struct batch){.stream = stream, .submitted = work->entered, .seen_running = work->entered};
    if (!all->pace.pieces) all->pace.since = work->entered;
    all->pace.latest = work->entered;
    all->ended = 0;
    open->pieces++;
    open->unknown += work->unknown;
    open->estimate += work->estimate;
    all->pace.pieces++;
    all->pace.unknown += work->unknown;
    all->pace.estimate += work->estimate;
    count_piece(open, work);
    if (open->estimate >= BATCH_NS || open->unknown || open->kinds == BATCH_KINDS) close_batch(all);
    settle(all);
}

/* How long it ran, or 0 when that is not known. Between two events the driver knows. What did not follow other work
 * began when it was submitted, and its end may have been seen in time; and no work runs longer than since then, which is
 * better than knowing nothing. */
static int64_t measure(struct outstanding *all, const struct batch *batch, int64_t now, int fresh) {
    float milliseconds;
    if (batch->event && batch->follows && all->last.event && all->last.context == batch->context &&
        all->driver->event_elapsed(&milliseconds, all->last.event, batch->event) == CUDA_SUCCESS)
        return (int64_t)(milliseconds * 1e6F);
    int64_t longest = now - batch->submitted;
    if (batch->event && !batch->follows && now - batch->seen_running <= most(SEEN_LATE_NS, longest / 50))
        return longest;
    if (batch->unknown || longest < batch->estimate) return longest;
    /* Much longer than thought, and nobody watched: the next one gets an event. */
    return fresh && !batch->event && longest > 4 * batch->estimate ? BATCH_NS : 0;
}

static void learn(struct outstanding *all, const struct batch *batch, int64_t ran) {
    for (unsigned i = 0; ran > 0 && i < batch->kinds; i++) {
        double share = batch->estimate ? (double)batch->of[i].estimate / (double)batch->estimate : 1.0 / batch->kinds;
        pace_learn(&all->estimates, batch->of[i].key, batch->of[i].count, (double)ran * share, batch->follows);
    }
}

static void forget_first(struct outstanding *all, int64_t now, int fresh) {
    struct batch *batch = &all->ring[all->first];
    int64_t ran = measure(all, batch, now, fresh);
    learn(all, batch, ran);
    all->pace.excess += most(0, ran - batch->estimate);
    give_event(all, all->last.event, all->last.context);
    all->last.event = batch->event;
    all->last.context = batch->context;
    all->pace.since = ran ? most(batch->seen_running, least(now, all->pace.since + ran)) : now;
    subtract(all, batch);
    all->first = (all->first + 1) % BATCHES;
    all->count--;
}

static int has_ended(struct outstanding *all, struct batch *batch, int64_t now) {
    int running = batch->event ? all->driver->event_query(batch->event) == CUDA_ERROR_NOT_READY
                               : now < all->pace.since + batch->estimate;
    if (running) batch->seen_running = now;
    return !running;
}

void outstanding_look(struct outstanding *all, int64_t now, int fresh) {
    if (!all->pace.pieces) return;
    while (all->count && has_ended(all, &all->ring[all->first], now)) forget_first(all, now, fresh);
    if (!all->count && all->open.pieces && (fresh || has_ended(all, &all->open, now))) {
        if (fresh) learn(all, &all->open, measure(all, &all->open, now, fresh));
        subtract(all, &all->open);
        all->open.pieces = 0;
    }
    if (!all->pace.pieces) all->ended = now;
    settle(all);
}
