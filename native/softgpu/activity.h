/* What a GPU does and for which process: one page of shared memory per GPU, which every client receives with the
 * daemon's greeting. It has one slot per context. Mirrored by src/milligpu/softgpu/activity.py.
 *
 * In real time (`speed` is 0) a slot counts how long its context's work ran on the CPU. In modeled time the page is
 * also the GPU's timeline: each slot has a queue of jobs with modeled durations. The schedule over all slots is a
 * function of the page and the clock; every reader advances it (timeline.c). */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ACTIVITY_VERSION = 1,
    ACTIVITY_SLOTS = 512, /* contexts on one GPU: as many as a usage page has process slots */
    ACTIVITY_JOBS = 128,  /* how far a context's work may run ahead of the modeled GPU */
};
static const uint32_t ACTIVITY_MAGIC = 0x41475053; /* "SPGA" */

/* All times are nanoseconds of CLOCK_MONOTONIC. */
struct activity_job {
    uint64_t ready; /* the earliest time at which it may begin */
    uint64_t remaining;
    uint64_t end; /* set once it was served */
};

struct activity_slot {
    uint32_t pid; /* the client's pid on the host; 0: the slot is free */
    uint32_t reserved;
    uint64_t busy;                           /* time of the engine that runs kernels and fills */
    uint64_t since;                          /* real time: when the running work began; 0: none runs */
    uint64_t copy_busy;                      /* time of the engine that copies between host and GPU */
    uint64_t bytes_in, bytes_out;            /* to and from the GPU */
    uint64_t submitted, served, taken;       /* jobs: in total, served by the GPU, noticed by their owner */
    struct activity_job jobs[ACTIVITY_JOBS]; /* job number n, counted from 1, is at n % ACTIVITY_JOBS */
};

struct activity_page {
    uint32_t magic, version, slots, slot_bytes;
    double speed;                          /* 0: real time; 1: as fast as the modeled GPU */
    uint64_t ended_busy;                   /* of contexts that have ended */
    uint64_t late, late_worst, late_total; /* jobs that the CPU finished later than the GPU would have */
    /* The schedule. */
    uint64_t clock; /* history is settled up to here; on an idle GPU, when it became idle */
    uint64_t slice_start, slice_end;
    uint64_t copy_free; /* when the copy engine finishes its queue */
    int32_t current;    /* the slot that is running on the GPU, or -1 */
    uint32_t used;      /* slots from here on were never used */
    /* A GPU that fails takes its contexts down with it: how often it failed, and their CUresult since. */
    uint32_t faults, fault;
    union {
        pthread_mutex_t lock; /* robust: a client may die while it holds it */
        char room[64];
    };
    uint64_t peer_in, peer_out; /* bytes from and to other GPUs, of all contexts */
    _Alignas(64) struct activity_slot slot[ACTIVITY_SLOTS];
};
_Static_assert(sizeof(struct activity_job) == 24, "mirrors activity.py");
_Static_assert(sizeof(struct activity_slot) == 72 + 24 * ACTIVITY_JOBS, "mirrors activity.py");
_Static_assert(offsetof(struct activity_page, speed) == 16, "mirrors activity.py");
_Static_assert(offsetof(struct activity_page, faults) == 96, "mirrors activity.py");
_Static_assert(offsetof(struct activity_page, peer_in) == 168, "mirrors activity.py");
_Static_assert(offsetof(struct activity_page, slot) == 192, "mirrors activity.py");

/* ---- timeline.c ---- */
void activity_start(struct activity_page *page, double speed);
void activity_lock(struct activity_page *page);
void activity_unlock(struct activity_page *page);
int activity_open(struct activity_page *page, uint32_t pid);                  /* a slot, or -1 */
void activity_close(struct activity_page *page, uint32_t slot, uint64_t now); /* drops its jobs */
uint64_t activity_busy(struct activity_page *page, uint32_t slot, uint64_t now);

/* Call these with the lock held. */
void timeline_advance(struct activity_page *page, uint64_t now);
/* The number of the job; 0 if the slot's queue is full. */
uint64_t timeline_submit(struct activity_page *page, uint32_t slot, uint64_t ready, uint64_t duration, uint64_t now);
/* When a job will end if no other arrives, looking ahead no further than `horizon`. */
uint64_t timeline_predict(const struct activity_page *page, uint32_t slot, uint64_t job, uint64_t horizon);
/* A copy between host and GPU; returns when it ends. */
uint64_t timeline_copy(struct activity_page *page, uint32_t slot, uint64_t ready, uint64_t duration);
