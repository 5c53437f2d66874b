/* Streams as queues: submission, ordering, and waiting for work. The context's lock protects all its queues. */
#include "softgpu.h"
#include <stdlib.h>
#include <time.h>

/* As deep as a real driver's queue: a host that runs ahead must block at some point. */
enum { MOST_WAITING = 1024 };

uint64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Waits on it may have a deadline of CLOCK_MONOTONIC, the clock of all times here. */
void condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct work *work_new(enum work_kind kind, size_t parameter_bytes)
{
    struct work *work = malloc(sizeof *work + parameter_bytes);
    if (work) {
        work->next = 0;
        work->kind = kind;
    }
    return work;
}

struct stream *stream_new(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return 0;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = next_id();
    stream->references = 1;
    stream->last = &stream->first;
    stream->trail_end = &stream->trail;
    condition_init(&stream->more);
    stream->handle = handle_new(HANDLE_STREAM, stream);
    pthread_mutex_lock(&context->lock);
    stream->next = context->streams;
    context->streams = stream;
    pthread_mutex_unlock(&context->lock);
    return stream;
}

void stream_keep(struct stream *stream)
{
    atomic_fetch_add(&stream->references, 1);
}

void stream_release(struct stream *stream)
{
    if (atomic_fetch_sub(&stream->references, 1) == 1) {
        pthread_cond_destroy(&stream->more);
        free(stream->tips.nodes);
        free(stream);
    }
}

/* Under the lock. */
void stream_leave(struct stream *stream)
{
    struct stream **at = &stream->context->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
}

/* End a stream: its queue is finished first, then its worker ends. Until then it is one of its context's streams, which
 * others wait for. Further calls have no effect. */
void stream_close(struct stream *stream)
{
    struct context *context = stream->context;
    pthread_mutex_lock(&context->lock);
    bool first = !stream->closing;
    stream->closing = true;
    if (first && !stream->started)
        stream_leave(stream);
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&context->lock);
    if (!first)
        return;
    handle_drop(HANDLE_STREAM, stream->handle);
    stream_release(stream);
}

/* Any stream that is not closed, retained for the caller. */
static struct stream *open_stream(struct context *context)
{
    pthread_mutex_lock(&context->lock);
    struct stream *stream = context->streams;
    while (stream && stream->closing)
        stream = stream->next;
    if (stream)
        stream_keep(stream);
    pthread_mutex_unlock(&context->lock);
    return stream;
}

void streams_close(struct context *context)
{
    for (struct stream *stream = open_stream(context); stream; stream = open_stream(context)) {
        stream_close(stream);
        stream_release(stream);
    }
}

void mark_keep(struct mark *mark)
{
    atomic_fetch_add(&mark->references, 1);
}

void mark_drop(struct mark *mark)
{
    if (mark && atomic_fetch_sub(&mark->references, 1) == 1) {
        stream_release(mark->stream);
        free(mark->tips.nodes);
        free(mark);
    }
}

uint64_t stream_submitted(const struct stream *stream)
{
    return atomic_load_explicit(&stream->submitted, memory_order_acquire);
}

uint64_t stream_completed(struct stream *stream)
{
    if (modelled(stream->context)) {
        pthread_mutex_lock(&stream->context->lock);
        modelled_progress(stream->context);
        pthread_mutex_unlock(&stream->context->lock);
    }
    return atomic_load(&stream->completed);
}

bool stream_busy(const struct stream *stream)
{
    return atomic_load(&stream->completed) < stream_submitted(stream);
}

bool mark_reached(struct mark *mark)
{
    return stream_completed(mark->stream) >= mark->sequence;
}

void stream_reach(struct stream *stream, uint64_t sequence)
{
    struct context *context = stream->context;
    if (modelled(context)) {
        modelled_wait(stream, sequence);
        return;
    }
    for (int look = 0; look < LOOKS; look++) {
        if (atomic_load(&stream->completed) >= sequence)
            return;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&context->lock);
    atomic_fetch_add(&context->waiters, 1);
    while (atomic_load(&stream->completed) < sequence)
        pthread_cond_wait(&context->done, &context->lock);
    atomic_fetch_sub(&context->waiters, 1);
    pthread_mutex_unlock(&context->lock);
}

CUresult stream_wait(struct stream *stream, uint64_t sequence)
{
    stream_reach(stream, sequence);
    return context_status(stream->context);
}

static void append(struct stream *stream, struct work *work)
{
    work->sequence = stream_submitted(stream) + 1;
    work->submitted = modelled(stream->context) ? now_nanoseconds() : 0;
    work->job = 0;
    __atomic_store_n(stream->last, work, __ATOMIC_RELAXED); /* the worker reads it without the lock */
    atomic_store_explicit(&stream->submitted, work->sequence, memory_order_release);
    stream->last = &work->next;
    if (atomic_exchange(&stream->idle, false))
        pthread_cond_signal(&stream->more);
}

/* Make `stream` wait for the current work of `other`. Under the lock. */
static bool append_wait(struct stream *stream, struct stream *other)
{
    if (other == stream || !stream_busy(other))
        return true;
    struct work *work = work_new(WORK_WAIT, 0);
    struct mark *mark = calloc(1, sizeof *mark);
    if (!work || !mark) {
        free(work);
        free(mark);
        return false;
    }
    stream_keep(other);
    *mark = (struct mark){.references = 1, .stream = other, .sequence = stream_submitted(other)};
    work->mark = mark;
    append(stream, work);
    return true;
}

/* The legacy default stream waits for all blocking streams, and they wait for it. Under the lock. */
static bool order(struct stream *stream)
{
    struct context *context = stream->context;
    if (stream->flags & CU_STREAM_NON_BLOCKING)
        return true;
    if (stream != context->legacy)
        return append_wait(stream, context->legacy);
    for (struct stream *other = context->streams; other; other = other->next)
        if (!(other->flags & CU_STREAM_NON_BLOCKING) && !append_wait(stream, other))
            return false;
    return true;
}

static CUresult submit(struct stream *stream, struct work *work, struct mark *mark)
{
    struct context *context = stream->context;
    checkpoint_pass();
    if (stream == context->legacy && atomic_load(&context->captures))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    uint64_t submitted = stream_submitted(stream), completed = atomic_load(&stream->completed);
    if (submitted > completed + MOST_WAITING)
        stream_reach(stream, submitted - MOST_WAITING);
    pthread_mutex_lock(&context->lock);
    bool closed = stream->closing, good = !closed && (stream->started || stream_start(stream)) && order(stream);
    if (good) {
        append(stream, work);
        if (mark)
            mark->sequence = work->sequence;
    }
    pthread_mutex_unlock(&context->lock);
    return good ? CUDA_SUCCESS : closed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_submit(struct stream *stream, struct work *work)
{
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = context_status(stream->context);
    if (!status)
        status = stream->capture ? capture_work(stream, work) : submit(stream, work, 0);
    if (status)
        free(work);
    return status;
}

CUresult stream_submit_mark(struct stream *stream, struct mark **made)
{
    struct work *work = work_new(WORK_MARK, 0);
    struct mark *mark = calloc(1, sizeof *mark);
    if (!work || !mark) {
        free(work);
        free(mark);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream_keep(stream);
    *mark = (struct mark){.references = 2, .stream = stream};
    work->mark = mark;
    if (stream->capture) {
        free(work);
        mark->references = 1;
        *made = mark;
        return capture_mark(stream, mark);
    }
    CUresult status = submit(stream, work, mark);
    if (status) {
        free(work);
        mark_drop(mark);
        mark_drop(mark);
        return status;
    }
    *made = mark;
    return CUDA_SUCCESS;
}

/* ---- waiting for a context ---- */
struct place { /* in a stream that is retained */
    struct stream *stream;
    uint64_t sequence;
};

static bool drains(const struct stream *stream, bool blocking_only)
{
    return stream_busy(stream) && !(blocking_only && stream->flags & CU_STREAM_NON_BLOCKING);
}

/* The last submission of each busy stream up to now. Under the lock. */
static CUresult places_of(struct context *context, bool blocking_only, struct place **places, size_t *count)
{
    size_t room = 0;
    for (struct stream *stream = context->streams; stream; stream = stream->next)
        room += drains(stream, blocking_only);
    *places = room ? malloc(room * sizeof **places) : 0;
    if (room && !*places)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (struct stream *stream = context->streams; stream && *count < room; stream = stream->next)
        if (drains(stream, blocking_only)) {
            stream_keep(stream);
            (*places)[(*count)++] = (struct place){stream, stream_submitted(stream)};
        }
    return CUDA_SUCCESS;
}

/* Work that other threads submit meanwhile is not waited for: they may never stop. */
CUresult context_drain(struct context *context, bool blocking_only)
{
    struct place *places;
    size_t count = 0;
    pthread_mutex_lock(&context->lock);
    CUresult status = places_of(context, blocking_only, &places, &count);
    pthread_mutex_unlock(&context->lock);
    for (size_t at = 0; at < count; at++) {
        stream_reach(places[at].stream, places[at].sequence);
        stream_release(places[at].stream);
    }
    free(places);
    return status ? status : context_status(context);
}

bool context_busy(struct context *context, bool blocking_only)
{
    bool busy = false;
    pthread_mutex_lock(&context->lock);
    if (modelled(context))
        modelled_progress(context);
    for (struct stream *stream = context->streams; stream && !busy; stream = stream->next)
        busy = drains(stream, blocking_only);
    pthread_mutex_unlock(&context->lock);
    return busy;
}

/* Wait as the next work of this stream would: for the stream's own work and for everything it is ordered after. */
CUresult stream_settle(struct stream *stream)
{
    struct context *context = stream->context;
    if (stream == context->legacy)
        return context_drain(context, true);
    if (!(stream->flags & CU_STREAM_NON_BLOCKING))
        stream_reach(context->legacy, stream_submitted(context->legacy));
    return stream_wait(stream, stream_submitted(stream));
}
