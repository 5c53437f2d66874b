/* How a process paces itself inside its tenant's lease: what it has on the GPU, for how long, and what may follow.
 *
 * Pure, like choose.h: times in nanoseconds, passed to each call. The limits library uses it with CUDA events, the
 * simulation with a modeled GPU.
 */
#ifndef MILLIGPU_LEASE_PACE_H
#define MILLIGPU_LEASE_PACE_H

#include <stdint.h>

#include "protocol.h"

/* ---- durations: a moving average per kind of work ---- */

/* More kinds than a program has at a time. Each has one of a few possible places; a kind that lost its place is unknown
 * again. */
enum { PACE_SETS = 512, PACE_WAYS = 4 };
/* The estimate for work that was never measured, and the speed of a copy or memset (10 GB/s). These guesses are safe,
 * because nothing else is launched until such work has ended. */
#define PACE_UNKNOWN_NS INT64_C(1000000)
#define PACE_BYTES_PER_NS 10

struct pace_estimates {
    uint64_t learnt; /* number of measurements */
    struct pace_kind {
        uint64_t key;
        uint64_t used;   /* number of the last measurement of this kind */
        double duration; /* of one piece, or of one byte */
        double longer;   /* the least of the last, much longer measurements */
        uint32_t row;    /* how many of them there were in a row */
        uint32_t exact;  /* how many longer, inexact measurements are still ignored */
    } kinds[PACE_SETS][PACE_WAYS];
};

/* The key of a kind of work: the function or graph, and the size of the work as a power of two. Never 0. */
uint64_t pace_key(const void *what, uint64_t size);

/* Whether this kind was measured and its durations are stable. */
int pace_known(const struct pace_estimates *estimates, uint64_t key);
int64_t pace_estimate(const struct pace_estimates *estimates, uint64_t key, uint64_t bytes);
/* `count` pieces (or bytes) of this kind took `measured` nanoseconds together; if not `exact`, at most that. */
void pace_learn(struct pace_estimates *estimates, uint64_t key, uint64_t count, double measured, int exact);

/* ---- outstanding work ---- */

struct pace {
    uint32_t pieces;  /* launched and not known to have ended */
    uint32_t unknown; /* the pieces whose kind is unknown */
    int64_t estimate; /* of all pieces together */
    int64_t oldest;   /* the part of `estimate` that belongs to the running batch */
    int64_t since;    /* when the running batch began */
    int64_t latest;   /* when the last piece was launched */
    /* While there is no arbiter. */
    int64_t frame;  /* the last frame that gave credit */
    int64_t credit; /* unused time of earlier time slots */
    int64_t excess; /* what work took beyond its estimate, not yet taken from the credit */
};

/* How much longer the GPU is busy with the outstanding work. */
int64_t pace_left(const struct pace *pace, int64_t now);

/* Whether the end of the outstanding work is unknown: its kind is unknown, or it is overdue. While others wait, nothing
 * is launched behind it, and its end is not predicted. */
int pace_uncertain(const struct pace *pace, int64_t now);

/* When to check whether some of the work has ended: at its estimated end, and less often the longer it is overdue. */
int64_t pace_look_at(const struct pace *pace, int64_t now);

enum pace_decision {
    PACE_GO,      /* launch */
    PACE_FULL,    /* enough is outstanding: ask again at `when`, or after some of it has ended */
    PACE_OUTSIDE, /* not in this lease: ask again at `when`, or after the lease words have changed */
};

/* Whether a piece of this estimate may be launched in a lease that ends at `until`. */
enum pace_decision pace_gate(struct pace *pace, int64_t now, int64_t until, unsigned flags, int64_t estimate,
                             int64_t *when);

/* Whether a piece may be launched while no other tenant waits, whatever the time in the lease. */
int pace_fits_alone(const struct pace *pace, int64_t estimate);

/* As `pace_gate` without an arbiter, in the time slot [start, start + length) of each frame. PACE_GO takes credit. */
enum pace_decision pace_slot(struct pace *pace, int64_t now, uint32_t start_us, uint32_t length_us, int64_t estimate,
                             int64_t *when);

/* ---- idle: when to hand the lease back ---- */

struct pace_gaps {
    double often; /* how likely the next gap is short: a moving average */
    double usual; /* how long the short gaps are */
};

void pace_gap(struct pace_gaps *gaps, int64_t gap);
/* How long to keep a lease without work. */
int64_t pace_hold(const struct pace_gaps *gaps);
/* Whether the program usually submits again at once. */
int pace_soon(const struct pace_gaps *gaps);

#endif
