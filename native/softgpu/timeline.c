/* The modeled GPU's schedule: one engine, divided into slices among the contexts that have work, round robin. It is a
 * pure function of the page and the given time, so tests can use their own clock. */
#define _GNU_SOURCE
#include "activity.h"
#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* As in NVIDIA's default time slicing. */
static const uint64_t SLICE = 2000000;
/* Jobs that end later than this are counted, because they distort measurements: half a slice. */
static const uint64_t LATE = 1000000;

void activity_start(struct activity_page *page, double speed)
{
    pthread_mutexattr_t attributes;
    memset(page, 0, offsetof(struct activity_page, slot));
    page->version = ACTIVITY_VERSION;
    page->slots = ACTIVITY_SLOTS;
    page->slot_bytes = sizeof(struct activity_slot);
    page->speed = speed;
    page->current = -1;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&page->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    page->magic = ACTIVITY_MAGIC;
}

/* A process that died with the lock left at most one step of the schedule half done; the next step repairs it. */
void activity_lock(struct activity_page *page)
{
    if (pthread_mutex_lock(&page->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&page->lock);
}

void activity_unlock(struct activity_page *page)
{
    pthread_mutex_unlock(&page->lock);
}

static struct activity_job *job_of(struct activity_slot *slot, uint64_t number)
{
    return &slot->jobs[number % ACTIVITY_JOBS];
}

/* The job at the head of a slot's queue, if it has one. */
static struct activity_job *head(struct activity_slot *slot)
{
    return slot->pid && slot->served < slot->submitted ? job_of(slot, slot->served + 1) : 0;
}

/* The next slot, round robin, that has work at this time; -1 if there is none. */
static int next_slot(struct activity_page *page, uint64_t time)
{
    for (uint32_t step = 1; step <= page->used; step++) {
        uint32_t at = (uint32_t)(page->current + (int)step) % page->used;
        struct activity_job *job = head(&page->slot[at]);
        if (job && job->ready <= time)
            return (int)at;
    }
    return -1;
}

/* When queued work may begin; UINT64_MAX if there is none. */
static uint64_t next_ready(struct activity_page *page)
{
    uint64_t first = UINT64_MAX;
    for (uint32_t at = 0; at < page->used; at++) {
        struct activity_job *job = head(&page->slot[at]);
        if (job && job->ready < first)
            first = job->ready;
    }
    return first;
}

/* Give the GPU to the next slot that has work; false if there is none before `now`. */
static bool rotate(struct activity_page *page, uint64_t now)
{
    int chosen = next_slot(page, page->clock);
    if (chosen < 0) {
        uint64_t ready = next_ready(page);
        if (ready >= now)
            return false; /* the clock stays where the GPU became idle: work may still be dated back to then */
        page->clock = ready;
        chosen = next_slot(page, ready);
    }
    page->current = chosen;
    page->slice_start = page->clock;
    page->slice_end = page->clock + SLICE;
    return true;
}

/* Serve the head of the current slot's queue, at most to the end of the slice. */
static void serve(struct activity_page *page, struct activity_slot *slot, struct activity_job *job, uint64_t now)
{
    uint64_t until = now < page->slice_end ? now : page->slice_end;
    uint64_t step = until - page->clock < job->remaining ? until - page->clock : job->remaining;
    page->clock += step;
    slot->busy += step;
    job->remaining -= step;
    if (!job->remaining) {
        job->end = page->clock;
        slot->served++;
    }
}

void timeline_advance(struct activity_page *page, uint64_t now)
{
    while (page->clock < now) {
        struct activity_slot *slot = page->current < 0 ? 0 : &page->slot[page->current];
        struct activity_job *job = slot ? head(slot) : 0;
        if (job && job->ready <= page->clock && page->clock < page->slice_end)
            serve(page, slot, job, now);
        else if (!rotate(page, now))
            return;
    }
}

/* If the CPU needed longer for a job than the modeled GPU, the job ends late and is counted. */
static void note_lateness(struct activity_page *page, uint64_t by)
{
    if (by <= LATE)
        return;
    page->late++;
    page->late_total += by;
    if (by > page->late_worst)
        page->late_worst = by;
}

uint64_t timeline_submit(struct activity_page *page, uint32_t number, uint64_t ready, uint64_t duration, uint64_t now)
{
    struct activity_slot *slot = &page->slot[number];
    if (slot->submitted - slot->taken == ACTIVITY_JOBS)
        return 0;
    timeline_advance(page, now);
    bool first = slot->served == slot->submitted;
    /* Its turn passed while the CPU worked on it: in this slice, or in an earlier one. */
    if (first && page->current >= 0 && page->slice_start > ready && page->clock >= now)
        note_lateness(page, now - (page->slice_start < ready + SLICE ? page->slice_start : ready + SLICE));
    uint64_t job = slot->submitted + 1;
    *job_of(slot, job) = (struct activity_job){.ready = ready, .remaining = duration ? duration : 1};
    slot->submitted = job;
    if (first) {
        timeline_advance(page, now);
        if (slot->served == job && job_of(slot, job)->end < now)
            note_lateness(page, now - job_of(slot, job)->end);
    }
    return job;
}

/* The remaining time of a slot's jobs up to and including one. */
static uint64_t backlog(const struct activity_slot *slot, uint64_t last)
{
    uint64_t total = 0;
    for (uint64_t job = slot->served + 1; slot->pid && job <= last; job++)
        total += slot->jobs[job % ACTIVITY_JOBS].remaining;
    return total;
}

/* Give each slot its slices until the job has ended; work that is not ready yet counts as if it were. */
uint64_t timeline_predict(const struct activity_page *page, uint32_t number, uint64_t job, uint64_t horizon)
{
    uint64_t left[ACTIVITY_SLOTS], time = page->clock;
    if (job <= page->slot[number].served)
        return page->slot[number].jobs[job % ACTIVITY_JOBS].end;
    for (uint32_t at = 0; at < page->used; at++)
        left[at] = backlog(&page->slot[at], at == number ? job : page->slot[at].submitted);
    uint32_t at = page->current < 0 ? number : (uint32_t)page->current;
    uint64_t room = page->current >= 0 && page->slice_end > time ? page->slice_end - time : SLICE;
    for (; time < horizon; at = (at + 1) % page->used, room = SLICE) {
        uint64_t step = left[at] < room ? left[at] : room;
        time += step;
        left[at] -= step;
        if (at == number && !left[at])
            return time;
    }
    return horizon;
}

uint64_t timeline_copy(struct activity_page *page, uint32_t number, uint64_t ready, uint64_t duration)
{
    uint64_t start = page->copy_free > ready ? page->copy_free : ready;
    page->copy_free = start + duration;
    page->slot[number].copy_busy += duration;
    return page->copy_free;
}

/* ---- slots ---- */
int activity_open(struct activity_page *page, uint32_t pid)
{
    int chosen = -1;
    activity_lock(page);
    for (uint32_t at = 0; at < ACTIVITY_SLOTS && chosen < 0; at++)
        if (!page->slot[at].pid)
            chosen = (int)at;
    if (chosen >= 0) {
        memset(&page->slot[chosen], 0, sizeof page->slot[chosen]);
        page->slot[chosen].pid = pid;
        if (page->used <= (uint32_t)chosen)
            page->used = (uint32_t)chosen + 1;
    }
    activity_unlock(page);
    return chosen;
}

void activity_close(struct activity_page *page, uint32_t number, uint64_t now)
{
    if (number >= ACTIVITY_SLOTS)
        return;
    uint64_t busy = activity_busy(page, number, now);
    activity_lock(page);
    page->ended_busy += busy;
    page->slot[number].pid = 0;
    if (page->current == (int)number)
        page->current = -1;
    activity_unlock(page);
}

uint64_t activity_busy(struct activity_page *page, uint32_t number, uint64_t now)
{
    struct activity_slot *slot = &page->slot[number];
    activity_lock(page);
    if (page->speed > 0)
        timeline_advance(page, now);
    uint64_t busy = slot->busy, since = __atomic_load_n(&slot->since, __ATOMIC_ACQUIRE);
    activity_unlock(page);
    return since && since < now ? busy + (now - since) : busy;
}
