#include "outstanding.h"

/* An end that was noticed this much too late is no measurement. */
#define SEEN_LATE_NS INT64_C(50000)
/* One batch in this many is measured: durations are averages. */
enum { SAMPLED = 4 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- events ---- */

static CUevent take_event(struct outstanding *all, CUcontext context)
{
    CUevent event = NULL;
    for (unsigned i = all->spares; i-- > 0;) {
        if (all->spare[i].context != context)
            continue;
        event = all->spare[i].event;
        all->spare[i] = all->spare[--all->spares];
        return event;
    }
    CUcontext current = NULL;
    all->driver->context_get(&current);
    if (current != context && all->driver->context_push(context) != CUDA_SUCCESS)
        return NULL;
    if (all->driver->event_create(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        event = NULL;
    if (current != context)
        all->driver->context_pop(&current);
    return event;
}

static void give_event(struct outstanding *all, struct marked mark)
{
    if (!mark.event)
        return;
    if (all->spares < SPARE_EVENTS)
        all->spare[all->spares++] = mark;
    else
        all->driver->event_destroy(mark.event);
}

/* The context of a stream; a program's own streams are remembered until they are destroyed. */
static CUcontext stream_context(struct outstanding *all, CUstream stream)
{
    CUcontext context = NULL;
    unsigned place = (unsigned)((uintptr_t)stream >> 4) % STREAM_CONTEXTS;
    int own = (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD;
    if (own && all->streams[place].stream == stream)
        return all->streams[place].context;
    if (all->driver->stream_context(stream, &context) != CUDA_SUCCESS)
        return NULL;
    if (own) {
        all->streams[place].stream = stream;
        all->streams[place].context = context;
    }
    return context;
}

static void mark_end(struct outstanding *all, struct batch *batch, CUstream stream)
{
    batch->context = stream_context(all, stream);
    CUevent event = batch->context ? take_event(all, batch->context) : NULL;
    if (event && all->driver->event_record(event, stream) == CUDA_SUCCESS)
        batch->event = event;
    else
        give_event(all, (struct marked){event, batch->context});
}

void outstanding_end_stream(struct outstanding *all, CUstream stream)
{
    for (unsigned i = 0; i < STREAM_CONTEXTS; i++)
        if (all->streams[i].stream == stream)
            all->streams[i].stream = NULL;
}

static int ends(const struct outstanding *all, CUevent *event, CUcontext mine, CUcontext context)
{
    if (!*event || (context && mine != context))
        return 0;
    all->driver->event_destroy(*event);
    *event = NULL;
    return 1;
}

void outstanding_end_context(struct outstanding *all, CUcontext context)
{
    for (unsigned i = 0; i < STREAM_CONTEXTS; i++)
        if (!context || all->streams[i].context == context)
            all->streams[i].stream = NULL;
    for (unsigned i = 0; i < all->count; i++) {
        struct batch *batch = &all->ring[(all->first + i) % BATCHES];
        ends(all, &batch->event, batch->context, context);
    }
    ends(all, &all->last.event, all->last.context, context);
    for (unsigned i = 0; i < all->spares;)
        if (ends(all, &all->spare[i].event, all->spare[i].context, context))
            all->spare[i] = all->spare[--all->spares];
        else
            i++;
}

/* ---- outstanding work ---- */

static struct batch *newest(struct outstanding *all)
{
    return all->count ? &all->ring[(all->first + all->count - 1) % BATCHES] : NULL;
}

/* The running batch is the first of the ring or, if the ring is empty, the open one. */
static void settle(struct outstanding *all)
{
    const struct batch *running = all->count ? &all->ring[all->first] : &all->open;
    all->pace.oldest = running->pieces ? running->estimate : 0;
}

static void subtract(struct outstanding *all, const struct batch *batch)
{
    __atomic_store_n(&all->removed, all->removed + 1, __ATOMIC_RELAXED);
    all->pace.pieces -= batch->pieces;
    all->pace.unknown -= batch->unknown;
    all->pace.estimate -= batch->estimate;
}

static void close_batch(struct outstanding *all, CUstream stream)
{
    if (all->count == BATCHES)
        return; /* it stays open and keeps growing */
    struct batch *batch = &all->ring[(all->first + all->count++) % BATCHES];
    *batch = all->open;
    all->open.pieces = 0;
    mark_end(all, batch, stream);
}

static void open_batch(struct outstanding *all, const struct lease_work *work, enum mark mark)
{
    const struct batch *before = newest(all);
    int sampled = work->unknown || all->batches++ % SAMPLED == 0;
    int follows = sampled && mark != MARK_UNSEEN && before && before->event
                  && all->driver->event_query(before->event) == CUDA_ERROR_NOT_READY;
    all->open = (struct batch){.sampled = sampled,
                               .follows = follows,
                               .first = !all->pace.pieces,
                               .submitted = work->entered,
                               .seen_running = work->entered};
}

static void count_piece(struct batch *batch, const struct lease_work *work)
{
    uint64_t count = work->bytes ? work->bytes : 1;
    for (unsigned i = 0; i < batch->kinds; i++) {
        if (batch->of[i].key != work->key)
            continue;
        batch->of[i].count += count;
        batch->of[i].estimate += work->estimate;
        return;
    }
    if (batch->kinds == BATCH_KINDS)
        return;
    batch->of[batch->kinds].key = work->key;
    batch->of[batch->kinds].count = count;
    batch->of[batch->kinds++].estimate = work->estimate;
}

static void add_piece(struct outstanding *all, const struct lease_work *work)
{
    struct batch *open = &all->open;
    open->pieces++;
    open->unknown += (unsigned)work->unknown;
    open->estimate += work->estimate;
    all->pace.pieces++;
    all->pace.unknown += (unsigned)work->unknown;
    all->pace.estimate += work->estimate;
    count_piece(open, work);
}

int outstanding_join(struct outstanding *all, struct lease_work *work, int64_t size)
{
    if (!all->open.pieces || all->open.estimate + work->estimate >= size)
        return 0;
    work->unknown = 0;
    work->joined = all->removed + 1;
    add_piece(all, work);
    settle(all);
    return 1;
}

/* Its kind keeps the count, which matters little in an average. If the batch was closed meanwhile, it ends with it. */
void outstanding_withdraw(struct outstanding *all, const struct lease_work *work)
{
    if (!outstanding_is_joined(all, work) || all->open.pieces < 2 || all->open.estimate < work->estimate)
        return;
    all->open.pieces--;
    all->open.estimate -= work->estimate;
    all->pace.pieces--;
    all->pace.estimate -= work->estimate;
    settle(all);
}

void outstanding_add(struct outstanding *all, const struct lease_work *work, CUstream stream, int64_t size,
                     enum mark mark)
{
    struct batch *open = &all->open;
    if (!open->pieces)
        open_batch(all, work, mark);
    if (!all->pace.pieces)
        all->pace.since = work->entered;
    all->pace.latest = work->entered;
    all->ended = 0;
    add_piece(all, work);
    if (open->estimate >= size || open->unknown || mark == MARK_NOW)
        close_batch(all, stream);
    settle(all);
}

/* How long the batch ran, or 0 if unknown. Between two events the driver knows. A batch that began on an idle GPU began
 * when it was submitted, and its end may have been noticed in time. The time since submission is also an upper bound,
 * which is better than nothing. */
static int64_t measure(struct outstanding *all, const struct batch *batch, int64_t now, enum look how)
{
    float milliseconds;
    if (batch->event && batch->follows && all->last.event && all->last.context == batch->context
        && all->driver->event_elapsed(&milliseconds, all->last.event, batch->event) == CUDA_SUCCESS && milliseconds > 0)
        return (int64_t)(milliseconds * 1e6F);
    int64_t longest = now - batch->submitted;
    int in_time = now - batch->seen_running <= most(SEEN_LATE_NS, longest / 50);
    if (batch->first && (batch->event ? in_time : how == LOOK_FRESH))
        return longest;
    if (batch->unknown || longest < batch->estimate)
        return longest;
    return how == LOOK_FRESH && longest > 4 * batch->estimate ? longest : 0;
}

static void learn(struct outstanding *all, const struct batch *batch, int64_t ran)
{
    for (unsigned i = 0; ran > 0 && i < batch->kinds; i++) {
        double share = batch->estimate ? (double)batch->of[i].estimate / (double)batch->estimate : 1.0 / batch->kinds;
        pace_learn(&all->estimates, batch->of[i].key, batch->of[i].count, (double)ran * share, batch->follows);
    }
}

/* Remove a batch that has ended. Only the oldest is measured: behind others, its beginning is unknown. */
static void forget(struct outstanding *all, unsigned place, int64_t now, enum look how)
{
    struct batch *batch = &all->ring[(all->first + place) % BATCHES];
    if (place == 0) {
        int64_t ran = measure(all, batch, now, how);
        learn(all, batch, ran);
        all->pace.excess += most(0, ran - batch->estimate);
        give_event(all, all->last);
        all->last = (struct marked){batch->event, batch->context};
        int64_t end = all->pace.since + (ran ? ran : batch->estimate);
        all->pace.since = most(batch->seen_running, least(now, end));
    } else {
        give_event(all, (struct marked){batch->event, batch->context});
    }
    subtract(all, batch);
    for (; place > 0; place--)
        all->ring[(all->first + place) % BATCHES] = all->ring[(all->first + place - 1) % BATCHES];
    all->first = (all->first + 1) % BATCHES;
    all->count--;
}

/* Whether a look at the oldest batch is too early: estimates are seldom wrong by half, and each query is a call. */
static int is_early(const struct outstanding *all, const struct batch *batch, int64_t now, enum look how)
{
    return how != LOOK_FRESH && !batch->unknown && now < all->pace.since + batch->estimate / 2;
}

/* Whether the oldest batch takes longer than estimated, so that later ones in other streams may have ended. */
static int is_overdue(const struct outstanding *all, int64_t now)
{
    const struct batch *batch = &all->ring[all->first];
    return all->count && (batch->unknown || now > all->pace.since + batch->estimate + batch->estimate / 4);
}

static int has_ended(struct outstanding *all, struct batch *batch, int64_t now)
{
    int running = batch->event ? all->driver->event_query(batch->event) == CUDA_ERROR_NOT_READY
                               : now < all->pace.since + batch->estimate;
    if (running)
        batch->seen_running = now;
    return !running;
}

void outstanding_look(struct outstanding *all, int64_t now, enum look how)
{
    if (!all->pace.pieces)
        return;
    while (all->count && !is_early(all, &all->ring[all->first], now, how)
           && has_ended(all, &all->ring[all->first], now))
        forget(all, 0, now, how);
    for (unsigned place = 1; how == LOOK_ALL && is_overdue(all, now) && place < all->count;)
        if (has_ended(all, &all->ring[(all->first + place) % BATCHES], now))
            forget(all, place, now, how);
        else
            place++;
    if (!all->count && all->open.pieces && (how == LOOK_FRESH || has_ended(all, &all->open, now))) {
        if (how == LOOK_FRESH)
            learn(all, &all->open, measure(all, &all->open, now, how));
        subtract(all, &all->open);
        all->open.pieces = 0;
    }
    if (!all->pace.pieces)
        all->ended = now;
    settle(all);
}
