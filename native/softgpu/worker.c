/* A stream's own thread, started with its first work. It takes all waiting work at once, so that submitting does not
 * compete with running. */
#include "softgpu.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void fill(const struct work *work)
{
    for (size_t row = 0; row < work->fill.rows; row++) {
        char *to = work->fill.to + row * work->fill.pitch;
        if (work->fill.unit == 1)
            memset(to, (int)work->fill.value, work->fill.count);
        else if (work->fill.unit == 2)
            for (size_t at = 0; at < work->fill.count; at++)
                ((uint16_t *)to)[at] = (uint16_t)work->fill.value;
        else
            for (size_t at = 0; at < work->fill.count; at++)
                ((uint32_t *)to)[at] = work->fill.value;
    }
}

/* After a fault nothing accesses memory any more, but marks, waits and callbacks continue, so that no thread hangs. */
void work_run(struct stream *stream, struct work *work, struct tally *tally)
{
    struct context *context = stream->context;
    if (context_status(context) != CUDA_SUCCESS)
        return;
    if (work->kind == WORK_GRID) {
        int failure = grid_run(&work->grid, work->parameters, tally);
        if (failure)
            context_fail(context, (CUresult)failure);
    } else if (work->kind == WORK_FILL)
        fill(work);
    else
        for (size_t row = 0; row < work->copy.rows; row++)
            memmove(work->copy.to + row * work->copy.to_pitch, work->copy.from + row * work->copy.from_pitch,
                    work->copy.width);
}

/* Whether this work is for the engine that runs kernels; copies between host and GPU have their own. */
bool work_on_engine(const struct stream *stream, const struct work *work)
{
    const struct card *card = stream->context->card;
    if (work->kind == WORK_COPY)
        return memory_on_card(work->copy.to, card) && memory_on_card(work->copy.from, card);
    return work->kind == WORK_GRID || work->kind == WORK_FILL;
}

static void copy_host(struct stream *stream, struct work *work)
{
    struct context *context = stream->context;
    struct tally unused;
    size_t bytes = work->copy.rows * work->copy.width;
    uint64_t start = now_nanoseconds();
    work_run(stream, work, &unused);
    account_transfer(context, work->copy.to, work->copy.from, bytes, now_nanoseconds() - start);
}

/* Work that is not for the engine. */
static void perform(struct stream *stream, struct work *work)
{
    struct context *context = stream->context;
    switch (work->kind) {
    case WORK_GRID:
    case WORK_FILL:
    case WORK_COPY: copy_host(stream, work); break;
    case WORK_HOST:
        if (context_status(context) == CUDA_SUCCESS)
            work->host.function(work->host.argument);
        break;
    case WORK_CALLBACK:
        work->callback.function(work->callback.stream, context_status(context), work->callback.argument);
        break;
    case WORK_MARK:
        atomic_store(&work->mark->nanoseconds, now_nanoseconds());
        mark_drop(work->mark);
        break;
    case WORK_WAIT:
        stream_reach(work->mark->stream, work->mark->sequence);
        mark_drop(work->mark);
        break;
    case WORK_FREE: memory_free_later(work->pointer); break;
    }
}

static void complete(struct stream *stream, uint64_t sequence)
{
    struct context *context = stream->context;
    atomic_store(&stream->completed, sequence);
    if (atomic_load(&context->waiters)) {
        pthread_mutex_lock(&context->lock);
        pthread_cond_broadcast(&context->done);
        pthread_mutex_unlock(&context->lock);
    }
}

/* All waiting work, or null if the stream has ended. */
static struct work *take(struct stream *stream)
{
    struct context *context = stream->context;
    atomic_store(&stream->idle, true);
    for (int look = 0; look < LOOKS && !__atomic_load_n(&stream->first, __ATOMIC_RELAXED); look++)
        __builtin_ia32_pause();
    pthread_mutex_lock(&context->lock);
    while (!stream->first && (!stream->closing || stream->trail)) {
        atomic_store(&stream->idle, true);
        modelled_sleep(stream, &stream->more);
    }
    struct work *work = stream->first;
    __atomic_store_n(&stream->first, 0, __ATOMIC_RELAXED);
    stream->last = &stream->first;
    if (!work)
        stream_leave(stream);
    pthread_mutex_unlock(&context->lock);
    return work;
}

/* The engine counts as busy from the first to the last of consecutive work: reading the clock costs more than a small
 * kernel. */
static void perform_all(struct stream *stream, struct work *work)
{
    struct tally unused;
    uint64_t began = 0;
    bool busy = false;
    for (struct work *next; work; work = next) {
        bool engine = work_on_engine(stream, work);
        next = work->next;
        if (engine && !busy)
            began = account_begin(stream->context);
        else if (busy && !engine)
            account_end(stream->context, began);
        if (engine)
            work_run(stream, work, &unused);
        else
            perform(stream, work);
        if (engine && !next)
            account_end(stream->context, began);
        busy = engine;
        complete(stream, work->sequence);
        free(work);
    }
}

static void perform_modelled(struct stream *stream, struct work *work)
{
    for (struct work *next; work; work = next) {
        next = work->next;
        modelled_perform(stream, work);
    }
}

_Thread_local bool sg_worker;

static void *worker(void *argument)
{
    struct stream *stream = argument;
    sg_worker = true;
    for (struct work *work = take(stream); work; work = take(stream))
        if (modelled(stream->context))
            perform_modelled(stream, work);
        else
            perform_all(stream, work);
    stream_release(stream);
    return 0;
}

bool stream_start(struct stream *stream)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    /* Signals belong to the program's own threads, except for the faults that kernels cause. */
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    stream_keep(stream);
    stream->started = !pthread_create(&stream->worker, &attributes, worker, stream);
    if (!stream->started)
        stream_release(stream);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, 0);
    return stream->started;
}
