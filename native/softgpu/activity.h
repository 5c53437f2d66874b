/* What a card does and for whom: one page of shared memory per card, handed to every client with the daemon's
 * greeting. One slot per context. Mirrored by src/milligpu/softgpu/activity.py.
 *
 * In real time (`speed` is 0) a slot counts how long its context's work ran on the CPU. In modelled time the page also
 * is the card's timeline: each slot has a queue of jobs whose durations were modelled, and the schedule over all
 * slots is a function of the page and the clock, advanced by whoever looks (timeline.c). */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ACTIVITY_VERSION = 1,
    ACTIVITY_SLOTS = 512, /* contexts on one card: as many as a usage page has processes */
    ACTIVITY_JOBS = 128,  /* how far a context's work may run ahead of the modelled card */
};
static const uint32_t ACTIVITY_MAGIC = 0x41475053; /* "SPGA" */

/* All times are nanoseconds of CLOCK_MONOTONIC. */
struct activity_job {
    uint64_t ready;     /* it may not begin before */
    uint64_t remaining;
    uint64_t end;       /* once it was served */
};

struct activity_slot {
    uint32_t pid; /* of the client, as the host knows it; 0: the slot is free */
    uint32_t reserved;
    uint64_t busy;                   /* of the engine that runs kernels and fills */
    uint64_t since;                  /* real time: something runs since then; 0: nothing does */
    uint64_t copy_busy;              /* of the engine that copies between host and card */
    uint64_t bytes_in, bytes_out;    /* to and from the card */
    uint64_t submitted, served, taken; /* jobs: ever, served by the card, seen to be served by their owner */
    struct activity_job jobs[ACTIVITY_JOBS]; /* job number n, counted from 1, is at n % ACTIVITY_JOBS */
};

struct activity_page {
    uint32_t magic, version, slots, slot_bytes;
    double speed;            /* 0: real time; 1: as fast as the modelled card */
    uint64_t ended_busy;     /* of contexts that are gone */
    uint64_t late, late_worst, late_total; /* jobs that the CPU finished after the card should have */
    /* The schedule. */
    uint64_t clock;     /* history is settled up to here; on an idle card, since when it is idle */
    uint64_t slice_start, slice_end;
    uint64_t copy_free; /* when the copy engine has done what it was given */
    int32_t current;    /* the slot that has the card, or -1 */
    uint32_t used;      /* no slot from here on was ever taken */
    /* A card that failed takes the contexts with it that it had: how often it did, and their CUresult since. */
    uint32_t faults, fault;
    union {
        pthread_mutex_t lock; /* robust: a client may die with it */
        char room[64];
    };
    _Alignas(64) struct activity_slot slot[ACTIVITY_SLOTS];
};
_Static_assert(sizeof(struct activity_job) == 24, "mirrors activity.py");
_Static_assert(sizeof(struct activity_slot) == 72 + 24 * ACTIVITY_JOBS, "mirrors activity.py");
_Static_assert(offsetof(struct activity_page, speed) == 16, "mirrors activity.py");
_Static_assert(offsetof(struct activity_page, faults) == 96, "mirrors activity.py");
_Static_assert(offsetof(struct activity_page, slot) == 192, "mirrors activity.py");

/* ---- timeline.c ---- */
void activity_start(struct activity_page *page, double speed);
void activity_lock(struct activity_page *page);
void activity_unlock(struct activity_page *page);
int activity_open(struct activity_page *page, uint32_t pid);                  /* a slot, or -1 */
void activity_close(struct activity_page *page, uint32_t slot, uint64_t now); /* its jobs are forgotten */
uint64_t activity_busy(struct activity_page *page, uint32_t slot, uint64_t now);

/* With the lock held. */
void timeline_advance(struct activity_page *page, uint64_t now);
/* The number of the job; 0 if the slot's queue is full. */
uint64_t timeline_submit(struct activity_page *page, uint32_t slot, uint64_t ready, uint64_t duration, uint64_t now);
/* When a job will end if nothing else arrives, but no later than `horizon` looks ahead. */
uint64_t timeline_predict(const struct activity_page *page, uint32_t slot, uint64_t job, uint64_t horizon);
/* A copy between host and card: when it ends. */
uint64_t timeline_copy(struct activity_page *page, uint32_t slot, uint64_t ready, uint64_t duration);
