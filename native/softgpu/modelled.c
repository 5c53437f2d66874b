/* Modeled time: a launch occupies the GPU for as long as a real GPU would take, regardless of how long the CPU takes.
 *
 * The CPU runs ahead. A worker runs a kernel as soon as its stream allows, calculates how long the GPU takes for it,
 * and appends that as a job to its context's queue on the GPU's timeline. Work that the CPU has finished and the GPU
 * has not trails behind the stream and completes as the timeline says. Jobs are dated back to when they could have
 * begun. As long as the CPU is fast enough, neither its time for a kernel nor its scheduling latency is visible. */
#include "softgpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* Waits end at least this often: a context that died may have made room earlier than predicted. */
static const uint64_t LOOK_AGAIN = 20000000;

/* In this process, on all GPUs. */
static _Atomic uint64_t late_launches;

/* A measurement is only valid if the CPU was fast enough for the model. */
__attribute__((destructor)) static void say_late(void)
{
    if (atomic_load(&late_launches))
        fprintf(stderr, "software GPU: the CPU was too late for %llu launches in modeled time\n",
                (unsigned long long)atomic_load(&late_launches));
}

bool modelled(const struct context *context)
{
    return context->card->activity->speed > 0;
}

static uint64_t scaled(const struct context *context, uint64_t nanoseconds)
{
    return (uint64_t)((double)nanoseconds / context->card->activity->speed);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- completing trailing work ---- */
/* Record which jobs have ended. Under the context's lock. */
static void see_ends(struct context *context)
{
    struct activity_page *page = context->card->activity;
    struct activity_slot *slot = &page->slot[context->slot];
    activity_lock(page);
    timeline_advance(page, now_nanoseconds());
    for (; slot->taken < slot->served; slot->taken++) {
        uint64_t job = slot->taken + 1;
        context->ends[job % ACTIVITY_JOBS] = slot->jobs[job % ACTIVITY_JOBS].end;
    }
    context->ended = slot->taken;
    activity_unlock(page);
}

/* Complete a stream's oldest work if its time has come. Under the lock. */
static bool complete_first(struct stream *stream)
{
    struct work *work = stream->trail;
    if (!work || work->job > stream->context->ended)
        return false;
    if (work->kind == WORK_WAIT && atomic_load(&work->mark->stream->completed) < work->mark->sequence)
        return false;
    uint64_t end = work->job ? stream->context->ends[work->job % ACTIVITY_JOBS] : work->submitted;
    if (work->kind == WORK_WAIT) {
        uint64_t reached = atomic_load(&work->mark->nanoseconds);
        end = later(end, reached ? reached : work->mark->stream->floor);
    }
    stream->floor = later(stream->floor, end);
    if (work->kind == WORK_MARK)
        atomic_store(&work->mark->nanoseconds, stream->floor);
    if (work->kind == WORK_FREE)
        memory_free_later(work->pointer);
    stream->trail = work->next;
    if (!stream->trail)
        stream->trail_end = &stream->trail;
    atomic_store(&stream->completed, work->sequence);
    if (work->kind == WORK_MARK || work->kind == WORK_WAIT)
        mark_drop(work->mark);
    free(work);
    return true;
}

void modelled_progress(struct context *context)
{
    bool any = false, more = true;
    see_ends(context);
    while (more) {
        more = false;
        for (struct stream *stream = context->streams; stream; stream = stream->next)
            while (complete_first(stream))
                more = any = true;
    }
    if (any)
        pthread_cond_broadcast(&context->done);
}

/* ---- waiting ---- */
/* The last job that must end before a stream has completed `sequence`; 0 if none is known. Under the lock. */
static uint64_t last_job(const struct stream *stream, uint64_t sequence, int depth)
{
    uint64_t last = 0;
    for (const struct work *work = stream->trail; work && work->sequence <= sequence; work = work->next) {
        uint64_t job = work->job;
        if (work->kind == WORK_WAIT && depth)
            job = last_job(work->mark->stream, work->mark->sequence, depth - 1);
        last = later(last, job);
    }
    return last;
}

static void sleep_until(struct context *context, pthread_cond_t *condition, uint64_t deadline)
{
    struct timespec until = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};
    /* The kernel may add 50 us to any wait to save power, which is longer than many kernels. */
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_cond_timedwait(condition, &context->lock, &until);
    prctl(PR_SET_TIMERSLACK, slack);
}

/* Wait until the GPU should have ended a job, or something else happens. */
static void sleep_for(struct context *context, uint64_t job, pthread_cond_t *condition)
{
    struct activity_page *page = context->card->activity;
    uint64_t now = now_nanoseconds(), deadline = now + LOOK_AGAIN;
    if (job) {
        activity_lock(page);
        deadline = timeline_predict(page, context->slot, job, deadline);
        activity_unlock(page);
    }
    if (deadline > now)
        sleep_until(context, condition, deadline);
}

void modelled_wait(struct stream *stream, uint64_t sequence)
{
    struct context *context = stream->context;
    pthread_mutex_lock(&context->lock);
    atomic_fetch_add(&context->waiters, 1);
    for (modelled_progress(context); atomic_load(&stream->completed) < sequence; modelled_progress(context))
        sleep_for(context, stream->executed >= sequence ? last_job(stream, sequence, 2) : 0, &context->done);
    atomic_fetch_sub(&context->waiters, 1);
    pthread_mutex_unlock(&context->lock);
}

/* Wait for more work while trailing work still has to be completed. Under the lock. */
void modelled_sleep(struct stream *stream, pthread_cond_t *condition)
{
    struct context *context = stream->context;
    if (!stream->trail) {
        pthread_cond_wait(condition, &context->lock);
        return;
    }
    sleep_for(context, last_job(stream, stream->executed, 2), condition);
    modelled_progress(context);
}

/* ---- running work ---- */
/* The CPU has finished this work; the GPU completes it later. Under the lock. */
static void trail(struct stream *stream, struct work *work)
{
    work->next = 0;
    *stream->trail_end = work;
    stream->trail_end = &work->next;
    stream->executed = work->sequence;
    modelled_progress(stream->context);
    if (atomic_load(&stream->context->waiters))
        pthread_cond_broadcast(&stream->context->done);
}

/* Put a job of this length on the timeline as soon as there is room. Under the lock. */
static void submit(struct stream *stream, struct work *work, uint64_t duration)
{
    struct context *context = stream->context;
    struct activity_page *page = context->card->activity;
    for (;;) {
        uint64_t ready = later(work->submitted, stream->floor);
        activity_lock(page);
        uint64_t before = page->late;
        work->job = timeline_submit(page, context->slot, ready, duration, now_nanoseconds());
        atomic_fetch_add(&late_launches, page->late - before);
        activity_unlock(page);
        if (work->job)
            return;
        sleep_for(context, context->ended + 1, &context->done);
        modelled_progress(context);
    }
}

/* When a grid will begin, considering only its own context: the start value of the clocks that it reads. */
static uint64_t expected_start(struct stream *stream, const struct work *work)
{
    struct activity_page *page = stream->context->card->activity;
    struct activity_slot *slot = &page->slot[stream->context->slot];
    uint64_t start = later(work->submitted, stream->floor), now = now_nanoseconds();
    activity_lock(page);
    if (slot->served < slot->submitted)
        start = timeline_predict(page, stream->context->slot, slot->submitted, now + 1000000000u);
    activity_unlock(page);
    return start;
}

/* How long the GPU's main engine takes for work that the CPU has just done. */
static uint64_t duration_of(const struct context *context, const struct work *work, const struct tally *tally)
{
    const struct wire_device *device = &context->card->device;
    if (work->kind == WORK_GRID)
        return scaled(context, pace_grid(device, tally));
    size_t bytes = work->kind == WORK_FILL ? work->fill.rows * work->fill.count * work->fill.unit
                                           : 2 * work->copy.rows * work->copy.width;
    return scaled(context, pace_device(device, bytes));
}

/* Wait until the stream has completed everything before this work. */
static void settle(struct stream *stream, const struct work *work)
{
    modelled_wait(stream, work->sequence - 1);
}

static void finish(struct stream *stream, struct work *work, uint64_t end)
{
    pthread_mutex_lock(&stream->context->lock);
    stream->floor = later(stream->floor, end);
    stream->executed = work->sequence;
    atomic_store(&stream->completed, work->sequence);
    pthread_cond_broadcast(&stream->context->done);
    pthread_mutex_unlock(&stream->context->lock);
    free(work);
}

/* Occupy the copy engine from `ready` on and wait for the time that it needs; returns when it has finished. */
static uint64_t pass_copy(struct context *context, uint64_t ready, const struct work *work)
{
    struct activity_page *page = context->card->activity;
    size_t bytes = work->copy.rows * work->copy.width;
    uint64_t duration = scaled(context, pace_host(&context->card->device, bytes));
    activity_lock(page);
    uint64_t end = timeline_copy(page, context->slot, ready, duration);
    activity_unlock(page);
    account_transfer(context, work->copy.to, work->copy.from, bytes, 0);
    struct timespec until = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
    prctl(PR_SET_TIMERSLACK, slack);
    return end;
}

static void copy(struct stream *stream, struct work *work)
{
    struct tally unused;
    settle(stream, work);
    uint64_t ready = later(work->submitted, stream->floor);
    work_run(stream, work, &unused);
    finish(stream, work, pass_copy(stream->context, ready, work));
}

static void engine_work(struct stream *stream, struct work *work)
{
    struct context *context = stream->context;
    struct tally tally = {0};
    if (work->kind == WORK_GRID) {
        work->grid.clock_khz = context->card->device.clock_khz;
        work->grid.start = expected_start(stream, work);
    }
    work_run(stream, work, &tally);
    uint64_t duration = duration_of(context, work, &tally);
    pthread_mutex_lock(&context->lock);
    submit(stream, work, duration);
    trail(stream, work);
    pthread_mutex_unlock(&context->lock);
}

/* Jobs of one context keep their order, so it is enough that the CPU has reached them; jobs of other contexts are
 * waited for. */
static void wait_for(struct stream *stream, struct work *work)
{
    struct context *context = stream->context;
    struct stream *other = work->mark->stream;
    if (other->context != context) {
        settle(stream, work);
        modelled_wait(other, work->mark->sequence);
    }
    pthread_mutex_lock(&context->lock);
    atomic_fetch_add(&context->waiters, 1);
    while (other->context == context && other->executed < work->mark->sequence)
        pthread_cond_wait(&context->done, &context->lock);
    atomic_fetch_sub(&context->waiters, 1);
    trail(stream, work);
    pthread_mutex_unlock(&context->lock);
}

static void call_host(struct stream *stream, struct work *work)
{
    settle(stream, work);
    CUresult failure = context_status(stream->context);
    if (work->kind == WORK_CALLBACK)
        work->callback.function(work->callback.stream, failure, work->callback.argument);
    else if (!failure)
        work->host.function(work->host.argument);
    finish(stream, work, now_nanoseconds());
}

void modelled_perform(struct stream *stream, struct work *work)
{
    if (work_on_engine(stream, work)) {
        engine_work(stream, work);
        return;
    }
    switch (work->kind) {
    case WORK_GRID:
    case WORK_FILL:
    case WORK_COPY: copy(stream, work); break;
    case WORK_HOST:
    case WORK_CALLBACK: call_host(stream, work); break;
    case WORK_WAIT: wait_for(stream, work); break;
    case WORK_MARK:
    case WORK_FREE:
        pthread_mutex_lock(&stream->context->lock);
        trail(stream, work);
        pthread_mutex_unlock(&stream->context->lock);
        break;
    }
}
