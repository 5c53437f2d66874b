#include "pace.h"

/* Outstanding work: enough to keep a GPU busy while the host is descheduled, little enough to drain soon. */
#define BOUND INT64_C(2000000)
/* Beside a higher priority: one piece, or small ones up to this much together; the next one is launched so shortly
 * before the one ends that the GPU does not idle between them. */
#define BOUND_LOW INT64_C(200000)
#define SLACK_LOW INT64_C(100000)
/* Looking again sooner than this would be spinning. */
#define STEP INT64_C(20000)
/* A slot's work may end this much after it. */
#define SLOT_SLACK INT64_C(100000)
/* A piece that is about as long as the slot starts with the slot or not at all. */
#define SLOT_START INT64_C(1000000)
#define HOLD_LEAST INT64_C(30000)
#define HOLD_MOST INT64_C(500000)

#define WEIGHT_NEW 0.1

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static unsigned place(const void *key) {
    return (unsigned)(((uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15)) >> 48) % PACE_KINDS;
}

int64_t pace_estimate(const struct pace_estimates *estimates, const void *key, uint64_t bytes) {
    const struct pace_kind *kind = &estimates->kinds[place(key)];
    if (kind->key != key) return bytes ? (int64_t)(bytes / PACE_BYTES_PER_NS) : PACE_UNKNOWN_NS;
    return (int64_t)(bytes ? kind->duration * (double)bytes : kind->duration);
}

void pace_learn(struct pace_estimates *estimates, const void *key, uint64_t count, double measured) {
    struct pace_kind *kind = &estimates->kinds[place(key)];
    double one = measured / (double)count;
    if (kind->key == key) {
        kind->duration += WEIGHT_NEW * (one - kind->duration);
    } else {
        kind->key = key;
        kind->duration = one;
    }
}

int64_t pace_left(const struct pace *pace, int64_t now) {
    if (!pace->pieces) return 0;
    return pace->estimate - least(most(now - pace->since, 0), pace->oldest);
}

int64_t pace_look_at(const struct pace *pace, int64_t now) {
    if (!pace->pieces) return INT64_MAX;
    int64_t overdue = now - pace->since - pace->oldest;
    return now + most(STEP, most(pace_left(pace, now), overdue / 8));
}

enum pace_verdict pace_gate(const struct pace *pace, int64_t now, int64_t until, unsigned flags, int64_t estimate,
                            int64_t *when) {
    *when = INT64_MAX;
    if (now >= until) return PACE_OUTSIDE;
    if (!pace->pieces) return PACE_GO;
    int64_t left = pace_left(pace, now);
    *when = until;
    if (now + left >= until) return PACE_OUTSIDE;
    if (flags & LEASE_BESIDE_HIGHER) {
        if (left <= SLACK_LOW || left + estimate <= BOUND_LOW) return PACE_GO;
        *when = now + most(STEP, left - SLACK_LOW);
        return PACE_FULL;
    }
    if (pace->pieces < 2 || left + estimate <= BOUND) return PACE_GO;
    *when = now + most(STEP, left - most(BOUND / 2, BOUND - estimate));
    return PACE_FULL;
}

enum pace_verdict pace_slot(struct pace *pace, int64_t now, uint32_t start_us, uint32_t length_us, int64_t estimate,
                            int64_t *when) {
    int64_t start = start_us * INT64_C(1000), length = length_us * INT64_C(1000);
    int64_t frame = (now - start) / LEASE_FRAME_NS, opened = frame * LEASE_FRAME_NS + start;
    *when = opened + LEASE_FRAME_NS;
    if (!length) return PACE_OUTSIDE;
    if (pace->frame != frame) {
        int64_t passed = pace->frame ? least(frame - pace->frame, 1000) : 1;
        pace->credit = least(pace->credit + length * passed, most(length, 2 * estimate));
        pace->frame = frame;
    }
    int64_t left = pace_left(pace, now);
    int fits = now + left + estimate <= opened + length + SLOT_SLACK && pace->credit >= least(estimate, length) / 2;
    if (estimate > length - SLOT_START)
        fits = pace->credit >= estimate && !pace->pieces && now - opened < SLOT_START;
    if (!fits) return PACE_OUTSIDE;
    if (pace->pieces >= 2 && left + estimate > BOUND) {
        *when = now + most(STEP, left - most(BOUND / 2, BOUND - estimate));
        return PACE_FULL;
    }
    pace->credit -= estimate;
    return PACE_GO;
}

void pace_gap(struct pace_gaps *gaps, int64_t gap) {
    int is_short = gap <= HOLD_MOST;
    gaps->often += WEIGHT_NEW * (is_short - gaps->often);
    if (is_short) gaps->usual = most(gap, (int64_t)(gaps->usual * 0.98));
}

int pace_soon(const struct pace_gaps *gaps) { return gaps->often > 0.5; }

int64_t pace_hold(const struct pace_gaps *gaps) {
    if (!pace_soon(gaps)) return HOLD_LEAST;
    return least(HOLD_MOST, (int64_t)(1.5 * gaps->usual) + 20000);
}
