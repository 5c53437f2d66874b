/* How a process paces itself inside its tenant's lease: what it has on the GPU, for how long, and what may follow.
 *
 * Pure, like choose.h: times in nanoseconds, given with each call. The limits library uses it with CUDA events, the
 * simulation with a modelled GPU.
 */
#ifndef MILLIGPU_LEASE_PACE_H
#define MILLIGPU_LEASE_PACE_H

#include <stdint.h>

#include "protocol.h"

/* ---- how long work takes: a moving average per kind ---- */

/* More kinds than a program has at a time, each in one of a few places: a kind that lost its place is unknown again. */
enum { PACE_SETS = 512, PACE_WAYS = 4 };
/* What work is thought to take that was never seen, and a byte of a copy or memset (10 GB/s): a guess that nothing is
 * built on, because nothing else is launched until it has ended. */
#define PACE_UNKNOWN_NS INT64_C(1000000)
#define PACE_BYTES_PER_NS 10

struct pace_estimates {
    uint64_t learnt; /* how often anything was */
    struct pace_kind {
        uint64_t key;
        uint64_t used;   /* when it was last learnt */
        double duration; /* of one piece, or of one byte */
        double longer;   /* the least of those that were much longer, in a row */
        uint32_t row;    /* how many these are */
        uint32_t exact;  /* so many longer ones that are not exact are not believed */
    } kinds[PACE_SETS][PACE_WAYS];
};

/* What tells kinds apart: the function or graph, and how large the work is, to a power of two. Never 0. */
uint64_t pace_key(const void *what, uint64_t size);

/* Was it measured, and did it keep to that? */
int pace_known(const struct pace_estimates *estimates, uint64_t key);
int64_t pace_estimate(const struct pace_estimates *estimates, uint64_t key, uint64_t bytes);
/* So many pieces (or bytes) of this kind took `measured` nanoseconds in all; not `exact`: that, or less. */
void pace_learn(struct pace_estimates *estimates, uint64_t key, uint64_t count, double measured, int exact);

/* ---- what is outstanding ---- */

struct pace {
    uint32_t pieces;  /* launched and not known to have ended */
    uint32_t unknown; /* of these: of a kind that is not known */
    int64_t estimate; /* all of them, together */
    int64_t oldest;   /* of that: the batch that runs now */
    int64_t since;    /* when it began to run */
    int64_t latest;   /* when the last one was launched */
    /* While the arbiter is away. */
    int64_t frame;  /* the last frame that gave credit */
    int64_t credit; /* time in slots that was not used yet */
    int64_t excess; /* what work took longer than was thought, and was not taken from the credit yet */
};

/* How much longer the GPU will be busy with it. */
int64_t pace_left(const struct pace *pace, int64_t now);

/* Nobody can tell when it will end: it is of an unknown kind, or should have ended a while ago. Nothing is launched
 * behind it, and no end is foretold. */
int pace_uncertain(const struct pace *pace, int64_t now);

/* When to look whether some of it ended: when it should have; the longer that is ago, the less often. */
int64_t pace_look_at(const struct pace *pace, int64_t now);

enum pace_verdict {
    PACE_GO,      /* launch */
    PACE_FULL,    /* enough is outstanding: look again at `when`, or when some of it ended */
    PACE_OUTSIDE, /* not in this lease: look again at `when`, or when the lease words change */
};

/* May a piece of this estimate be launched in a lease that ends at `until`? */
enum pace_verdict pace_gate(struct pace *pace, int64_t now, int64_t until, unsigned flags, int64_t estimate,
                            int64_t *when);

/* The same without an arbiter: in the slot [start, start + length) of each frame. Takes credit when it says go. */
enum pace_verdict pace_slot(struct pace *pace, int64_t now, uint32_t start_us, uint32_t length_us, int64_t estimate,
                            int64_t *when);

/* ---- idle: when to hand the lease back ---- */

struct pace_gaps {
    double often; /* how likely the next gap is short: a moving average */
    double usual; /* how long the short ones are */
};

void pace_gap(struct pace_gaps *gaps, int64_t gap);
/* How long to hold on to a lease without work. */
int64_t pace_hold(const struct pace_gaps *gaps);
/* It usually comes back at once. */
int pace_soon(const struct pace_gaps *gaps);

#endif
