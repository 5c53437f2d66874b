#include "pace.h"

/* Outstanding work: enough to keep a GPU busy while the host is descheduled, little enough to drain soon. More is
 * allowed, behind the running batch, while no other tenant waits. */
#define BOUND INT64_C(4000000)
#define BOUND_ALONE INT64_C(20000000)
/* With a higher priority present: one piece, or small pieces up to this much together. The next piece is launched
 * shortly before the running one ends, so the GPU does not idle between them. */
#define BOUND_LOW INT64_C(200000)
#define SLACK_LOW INT64_C(100000)
/* Checking again sooner than this would be spinning. */
#define STEP INT64_C(20000)
/* Work of a time slot may end this much after the slot. */
#define SLOT_SLACK INT64_C(100000)
/* A piece that is about as long as the time slot starts with the slot or not at all. */
#define SLOT_START INT64_C(1000000)
#define HOLD_LEAST INT64_C(30000)
#define HOLD_MOST INT64_C(1000000)

#define WEIGHT_NEW 0.1
/* Work of other tenants can only make a measured duration longer. A duration longer than this factor is ignored, unless
 * it occurs this often in a row. */
#define LONGER_MOST 1.25
#define LONGER_ROW 5
/* A measurement that may contain work of others is ignored while exact ones arrive, at least once in this many. */
#define EXACT_TRUST 16
/* A duration longer than this factor belongs to another kind of work with the same key, until enough measurements
 * agree. */
#define LONGER_FAR 4
/* The end of work that is overdue by this much and a quarter of its duration is unknown. Less can be explained by a
 * time slice of another context. */
#define SURPRISE INT64_C(2000000)
/* After this long, work may be launched behind it anyway: the running work may be waiting for it. */
#define STUCK INT64_C(1000000000)

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

uint64_t pace_key(const void *what, uint64_t size)
{
    uint64_t magnitude = size > 1 ? (uint64_t)(64 - __builtin_clzll(size)) : 1;
    return (uint64_t)(uintptr_t)what ^ magnitude << 56;
}

static unsigned place(uint64_t key)
{
    return (unsigned)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 40) % PACE_SETS;
}

static const struct pace_kind *find(const struct pace_estimates *estimates, uint64_t key)
{
    const struct pace_kind *set = estimates->kinds[place(key)];
    for (int way = 0; way < PACE_WAYS; way++)
        if (set[way].key == key)
            return &set[way];
    return 0;
}

int pace_known(const struct pace_estimates *estimates, uint64_t key)
{
    const struct pace_kind *kind = find(estimates, key);
    return kind && (!kind->row || kind->longer <= kind->duration * LONGER_FAR + (double)SURPRISE);
}

int64_t pace_estimate(const struct pace_estimates *estimates, uint64_t key, uint64_t bytes)
{
    const struct pace_kind *kind = find(estimates, key);
    if (!kind)
        return bytes ? (int64_t)(bytes / PACE_BYTES_PER_NS) : PACE_UNKNOWN_NS;
    return (int64_t)(bytes ? kind->duration * (double)bytes : kind->duration);
}

/* A free place of the set, or the place of the kind that was measured the longest time ago. */
static struct pace_kind *make_room(struct pace_estimates *estimates, uint64_t key)
{
    struct pace_kind *set = estimates->kinds[place(key)], *oldest = set;
    for (int way = 1; way < PACE_WAYS; way++)
        if (set[way].used < oldest->used)
            oldest = &set[way];
    return oldest;
}

/* Whether to accept a duration; several longer ones in a row become the new estimate. */
static int is_believed(struct pace_kind *kind, double one)
{
    if (one <= kind->duration * LONGER_MOST) {
        kind->row = 0;
        return 1;
    }
    if (kind->row++ == 0 || one < kind->longer)
        kind->longer = one;
    if (kind->row == LONGER_ROW) {
        kind->duration = kind->longer;
        kind->row = 0;
    }
    return 0;
}

void pace_learn(struct pace_estimates *estimates, uint64_t key, uint64_t count, double measured, int exact)
{
    struct pace_kind *kind = (struct pace_kind *)find(estimates, key);
    double one = measured / (double)count;
    if (!kind) {
        kind = make_room(estimates, key);
        *kind = (struct pace_kind){.key = key, .duration = one};
    } else if (!exact && kind->exact && one > kind->duration) {
        kind->exact--;
    } else if (is_believed(kind, one)) {
        kind->duration += WEIGHT_NEW * (one - kind->duration);
    }
    if (exact)
        kind->exact = EXACT_TRUST;
    kind->used = ++estimates->learnt;
}

int64_t pace_left(const struct pace *pace, int64_t now)
{
    if (!pace->pieces)
        return 0;
    return pace->estimate - least(most(now - pace->since, 0), pace->oldest);
}

int pace_uncertain(const struct pace *pace, int64_t now)
{
    return pace->pieces && (pace->unknown || now - pace->since > pace->oldest + pace->oldest / 4 + SURPRISE);
}

int64_t pace_look_at(const struct pace *pace, int64_t now)
{
    if (!pace->pieces)
        return INT64_MAX;
    if (pace->unknown)
        return now + most(STEP, (now - pace->since) / 16);
    int64_t overdue = now - pace->since - pace->oldest;
    return now + most(STEP, most(pace_left(pace, now), overdue / 8));
}

/* Whether new work must wait for the end of the running work. */
static int is_blocked(const struct pace *pace, int64_t now, int64_t *when)
{
    int64_t stuck = most(pace->since, pace->latest) + STUCK;
    if (!pace_uncertain(pace, now) || now >= stuck)
        return 0;
    *when = least(pace_look_at(pace, now), stuck);
    return 1;
}

/* Whether the piece fits below the bound. If not, check again when half of the bound is used up, because every wake-up
 * has a cost. */
static enum pace_decision within(const struct pace *pace, int64_t now, int64_t left, int64_t estimate, int64_t bound,
                                 int64_t *when)
{
    if (pace->pieces < 2 || left + estimate <= bound)
        return PACE_GO;
    int64_t wait = most(left - bound / 2, left + estimate - bound);
    if (estimate > bound / 2)
        wait = least(wait, pace->since + pace->oldest - now); /* one out, one in */
    *when = now + most(STEP, wait);
    return PACE_FULL;
}

int pace_fits_alone(const struct pace *pace, int64_t estimate)
{
    return pace->pieces < 2 || pace->estimate - pace->oldest + estimate <= BOUND_ALONE;
}

/* No other tenant waits. The program must not be slowed down: only what it queues behind the running batch is bounded,
 * because a tenant that arrives would wait for it. */
static enum pace_decision alone(const struct pace *pace, int64_t now, int64_t estimate, int64_t *when)
{
    int64_t running = pace->since + pace->oldest - now;
    if (pace_fits_alone(pace, estimate))
        return PACE_GO;
    *when = now + most(STEP, running >= 0 ? running : -running / 8);
    return PACE_FULL;
}

enum pace_decision pace_gate(struct pace *pace, int64_t now, int64_t until, unsigned flags, int64_t estimate,
                             int64_t *when)
{
    *when = INT64_MAX;
    pace->excess = 0;
    if (now >= until)
        return PACE_OUTSIDE;
    if (!pace->pieces)
        return PACE_GO;
    if (!(flags & (LEASE_BESIDE_HIGHER | LEASE_CONTENDED)))
        return alone(pace, now, estimate, when);
    if (is_blocked(pace, now, when))
        return PACE_FULL;
    int64_t left = pace_left(pace, now);
    *when = until;
    if (now + left >= until)
        return PACE_OUTSIDE;
    if (flags & LEASE_BESIDE_HIGHER) {
        if (left <= SLACK_LOW || left + estimate <= BOUND_LOW)
            return PACE_GO;
        *when = now + most(STEP, left - SLACK_LOW);
        return PACE_FULL;
    }
    return within(pace, now, left, estimate, BOUND, when);
}

enum pace_decision pace_slot(struct pace *pace, int64_t now, uint32_t start_us, uint32_t length_us, int64_t estimate,
                             int64_t *when)
{
    int64_t start = start_us * INT64_C(1000), length = length_us * INT64_C(1000);
    int64_t frame = (now - start) / LEASE_FRAME_NS, opened = frame * LEASE_FRAME_NS + start;
    *when = opened + LEASE_FRAME_NS;
    if (!length)
        return PACE_OUTSIDE;
    pace->credit -= pace->excess;
    pace->excess = 0;
    if (pace->frame != frame) {
        int64_t passed = pace->frame ? least(frame - pace->frame, 1000) : 1;
        pace->credit = least(pace->credit + length * passed, most(length, 2 * estimate));
        pace->frame = frame;
    }
    if (is_blocked(pace, now, when))
        return PACE_FULL;
    int64_t left = pace_left(pace, now);
    int fits = now + left + estimate <= opened + length + SLOT_SLACK && pace->credit >= least(estimate, length) / 2;
    if (estimate > length - SLOT_START)
        fits = pace->credit >= estimate && !pace->pieces && now - opened < SLOT_START;
    if (!fits)
        return PACE_OUTSIDE;
    enum pace_decision decision = within(pace, now, left, estimate, BOUND, when);
    if (decision == PACE_GO)
        pace->credit -= estimate;
    return decision;
}

void pace_gap(struct pace_gaps *gaps, int64_t gap)
{
    int is_short = gap <= HOLD_MOST;
    gaps->often += WEIGHT_NEW * (is_short - gaps->often);
    if (is_short)
        gaps->usual = most(gap, (int64_t)(gaps->usual * 0.98));
}

int pace_soon(const struct pace_gaps *gaps)
{
    return gaps->often > 0.5;
}

int64_t pace_hold(const struct pace_gaps *gaps)
{
    if (!pace_soon(gaps))
        return HOLD_LEAST;
    return least(HOLD_MOST, (int64_t)(1.5 * gaps->usual) + 20000);
}
