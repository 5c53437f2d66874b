#define _GNU_SOURCE
#include "lease.h"
#include "link.h"
#include "outstanding.h"
#include "pace.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

/* The longest sleep of anyone who waits for the arbiter: news wake us; this is for its death. */
#define PATIENCE_NS (INT64_C(50) * 1000000)
/* How often the end of work that is overdue is looked for. */
#define STEP_NS INT64_C(20000)
/* How often, after the lease, whether the work is done: others wait for that, and estimates may be too long. */
#define DRAIN_STEP_NS INT64_C(100000)

/* One GPU as this process uses it. */
struct gate {
    uint32_t lock;  /* everything below; 0 free, 1 taken, 2 taken and waited for */
    uint32_t bell;  /* rung when there is something for the keeper to do */
    unsigned gpu;
    int keeper;     /* the thread that watches this gate is there */
    int asleep;     /* and sleeps by the bell */
    int64_t entered; /* when the last thread was let in */
    unsigned entering, waiting; /* threads between enter and leave, threads that wait in enter */
    unsigned unknown; /* of the entering ones: with work of an unknown kind */
    struct outstanding work;
    struct pace_gaps gaps;
    /* What the arbiter was last told. */
    unsigned said, said_number;
    uint32_t said_generation;
    int64_t said_at;
    int64_t foretold; /* when the work was to end */
};

static const struct mg_limits_page *page;
static const struct lease_driver *driver;
static struct gate gates[MG_PAGE_GPUS];

/* ---- a lock that costs two atomic instructions when nobody else wants it ---- */

static void gate_lock(struct gate *gate) {
    uint32_t seen = 0;
    if (__atomic_compare_exchange_n(&gate->lock, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    while (__atomic_exchange_n(&gate->lock, 2, __ATOMIC_ACQUIRE) != 0) word_wait(&gate->lock, 2, INT64_MAX);
}

static void gate_unlock(struct gate *gate) {
    if (__atomic_exchange_n(&gate->lock, 0, __ATOMIC_RELEASE) == 2) word_wake(&gate->lock);
}

static void ring(struct gate *gate) {
    if (!gate->asleep) return;
    gate->asleep = 0;
    __atomic_add_fetch(&gate->bell, 1, __ATOMIC_RELEASE);
    word_wake(&gate->bell);
}

/* ---- the words of the page ---- */

struct lease {
    uint32_t generation;
    unsigned flags;
    int64_t until; /* not beyond what the heartbeat vouches for */
    int alive;     /* the arbiter */
};

static const uint32_t *generation_word(const struct gate *gate) {
    return (const uint32_t *)&page->gpus[gate->gpu].lease_generation; /* its low half: little-endian */
}

static struct lease read_lease(const struct gate *gate, int64_t now) {
    const struct mg_gpu_limits *words = &page->gpus[gate->gpu];
    struct lease lease;
    lease.generation = __atomic_load_n(generation_word(gate), __ATOMIC_ACQUIRE);
    lease.flags = __atomic_load_n(&words->lease_flags, __ATOMIC_RELAXED);
    int64_t until = (int64_t)__atomic_load_n(&words->lease_until_ns, __ATOMIC_ACQUIRE);
    int64_t vouched = (int64_t)__atomic_load_n(&page->heartbeat_ns, __ATOMIC_RELAXED) + LEASE_HEARTBEAT_OLD_NS;
    lease.until = until < vouched ? until : vouched;
    lease.alive = now < vouched;
    return lease;
}

/* ---- what the arbiter is told ---- */

/* Says it unless that is what was said last. */
static void say(struct gate *gate, unsigned state, uint32_t generation, int64_t stamp) {
    if (gate->said == state && gate->said_generation == generation && gate->said_number == link_number()) return;
    struct lease_message message = {
        .gpu = (uint8_t)gate->gpu, .state = (uint8_t)state, .generation = generation, .stamp = stamp};
    gate->said_number = link_say(&message);
    gate->said = state;
    gate->said_generation = generation;
    gate->said_at = clock_now();
}

static int said_active(const struct gate *gate) { return gate->said & LEASE_ACTIVE && gate->said_number; }

static int said_near(const struct gate *gate, uint32_t generation) {
    return said_active(gate) && gate->said & LEASE_NEAR && gate->said_generation == generation &&
           gate->said_number == link_number();
}

/* The work does not end now, or nobody knows when. After the lease the arbiter hears that it runs on, and then from time
 * to time that somebody is still there to see its end. Returns when to look again. */
static int64_t say_running_on(struct gate *gate, const struct lease *lease, int64_t now) {
    int64_t first = lease->until + LEASE_RUNS_ON_NS;
    if (now < first && !said_near(gate, lease->generation)) return first;
    if (now - gate->said_at > LEASE_RUNNING_ON_NS) gate->said = 0;
    say(gate, LEASE_ACTIVE, lease->generation, now);
    return now + LEASE_RUNNING_ON_NS;
}

/* With the driver, or on the GPU for nobody knows how long. */
static int uncertain(const struct gate *gate, int64_t now) {
    return gate->entering || pace_uncertain(&gate->work.pace, now);
}

/* When to look again for those who wait for that. */
static int64_t look_at(const struct gate *gate, int64_t now) {
    int64_t again = pace_look_at(&gate->work.pace, now), step = (now - gate->entered) / 16;
    if (!gate->entering) return again;
    if (step < STEP_NS) step = STEP_NS;
    return again < now + step ? again : now + step;
}

/* The end of the lease, or of what may be launched in it: tells when it is near and when the work will be done; and
 * when it is done, unless that was foretold. Returns when to look again. */
static int64_t say_end(struct gate *gate, const struct lease *lease, int64_t now) {
    int64_t end = now + pace_left(&gate->work.pace, now), near = end > lease->until ? end : lease->until;
    int foretold = said_near(gate, lease->generation);
    if (uncertain(gate, now)) return say_running_on(gate, lease, now);
    if (!foretold && near - now > LEASE_OVERLAP_NS) {
        int64_t again = say_running_on(gate, lease, now);
        return again < near - LEASE_OVERLAP_NS ? again : near - LEASE_OVERLAP_NS;
    }
    if (gate->work.pace.pieces) {
        if (foretold) return now + STEP_NS;
        gate->foretold = end;
        say(gate, LEASE_ACTIVE | LEASE_NEAR, lease->generation, end);
        return now + STEP_NS;
    }
    int64_t off = gate->work.ended ? gate->work.ended - gate->foretold : 0;
    if (!foretold || off > LEASE_FORETOLD_NS || off < -LEASE_FORETOLD_NS)
        say(gate, LEASE_ACTIVE | LEASE_NEAR | LEASE_DRAINED, lease->generation,
            gate->work.ended ? gate->work.ended : now);
    return INT64_MAX;
}

/* Nothing to do: hold on to the lease for a moment, then hand it back. Returns when to look again. */
static int64_t say_idle(struct gate *gate, const struct lease *lease, int64_t now) {
    int64_t hold = now < lease->until ? gate->work.ended + pace_hold(&gate->gaps) : now;
    if (!said_active(gate) && !(gate->said & LEASE_SOON)) return INT64_MAX;
    if (now < hold) {
        if (lease->flags & LEASE_CONTENDED && pace_soon(&gate->gaps))
            say(gate, LEASE_SOON | LEASE_NEAR | LEASE_DRAINED, lease->generation, gate->work.ended);
        return hold;
    }
    say(gate, LEASE_NEAR | LEASE_DRAINED, lease->generation, gate->work.ended);
    return INT64_MAX;
}

/* A program that waits for each result and then soon comes back: tells of the gap shortly before it. */
static int64_t say_gap(struct gate *gate, const struct lease *lease, int64_t now) {
    int64_t left = pace_left(&gate->work.pace, now);
    if (uncertain(gate, now) || gate->waiting || now >= lease->until || gate->work.pace.estimate < 2 * LEASE_OVERLAP_NS ||
        !(lease->flags & LEASE_CONTENDED) || !pace_soon(&gate->gaps))
        return INT64_MAX;
    if (left > LEASE_OVERLAP_NS) return now + left - LEASE_OVERLAP_NS;
    gate->foretold = now + left;
    say(gate, LEASE_ACTIVE | LEASE_NEAR | LEASE_SOON, lease->generation, gate->foretold);
    return INT64_MAX;
}

/* ---- the keeper: one thread per GPU in use, which sees work end while the program does something else ---- */

/* Sleeps by the page while there is work, else by the bell. Called and returns with the lock. */
static void keeper_sleep(struct gate *gate, const struct lease *lease, int64_t when) {
    if (gate->work.pace.pieces) {
        gate_unlock(gate);
        word_wait(generation_word(gate), lease->generation, when);
    } else {
        uint32_t bell = __atomic_load_n(&gate->bell, __ATOMIC_RELAXED);
        gate->asleep = 1;
        gate_unlock(gate);
        word_wait(&gate->bell, bell, when);
    }
    gate_lock(gate);
    gate->asleep = 0;
}

static int64_t keeper_look(struct gate *gate, struct lease *lease) {
    int64_t now = clock_now();
    outstanding_look(&gate->work, now, 0);
    *lease = read_lease(gate, now);
    if (!gate->work.pace.pieces && !gate->entering && !gate->waiting) return say_idle(gate, lease, now);
    if (!gate->work.pace.pieces && now < lease->until) {
        word_wake(generation_word(gate)); /* the work ended before the lease: whoever waits for its end may go on */
        return INT64_MAX;
    }
    int64_t when = say_end(gate, lease, now), gap = say_gap(gate, lease, now);
    int64_t again = look_at(gate, now);
    if (gap < again) again = gap;
    if (gate->work.pace.pieces && now >= lease->until && now + DRAIN_STEP_NS < again) again = now + DRAIN_STEP_NS;
    return when < again ? when : again;
}

static void *keep(void *argument) {
    struct gate *gate = argument;
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->capture_mode(&relaxed); /* asking for events must not disturb a capture of the program's */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    prctl(PR_SET_NAME, "milligpu", 0, 0, 0);
    gate_lock(gate);
    for (;;) {
        struct lease lease;
        int64_t when = keeper_look(gate, &lease);
        if (gate->work.pace.pieces && when - clock_now() > PATIENCE_NS) when = clock_now() + PATIENCE_NS;
        keeper_sleep(gate, &lease, when);
    }
    return NULL;
}

static void start_keeper(struct gate *gate) {
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t attributes;
    gate->keeper = 1;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    sigfillset(&all); /* signals are the program's */
    sigprocmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, &attributes, keep, gate)) gate->keeper = 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* ---- the program's threads ---- */

/* Threads stay behind in the parent, and so does the work. */
static void after_fork(void) {
    for (unsigned i = 0; i < MG_PAGE_GPUS; i++)
        if (gates[i].work.driver) memset(&gates[i], 0, sizeof gates[i]);
    link_forget();
}

/* Gates are large and few are used: each is set up when it is. Called with the lock. */
static void open_gate(struct gate *gate) {
    if (gate->work.driver) return;
    gate->gpu = (unsigned)(gate - gates);
    gate->work.driver = driver;
}

void lease_start(const struct mg_limits_page *limits, const char *folder, const struct lease_driver *calls) {
    if (!page) pthread_atfork(NULL, NULL, after_fork); /* once, though a child starts again */
    page = limits;
    driver = calls;
    link_start(folder);
}

static enum pace_verdict ask(struct gate *gate, const struct lease *lease, int64_t now, int64_t estimate,
                             int64_t *when) {
    const struct mg_gpu_limits *words = &page->gpus[gate->gpu];
    if (gate->unknown) {
        *when = look_at(gate, now);
        return PACE_FULL;
    }
    if (lease->alive) return pace_gate(&gate->work.pace, now, lease->until, lease->flags, estimate, when);
    return pace_slot(&gate->work.pace, now, words->slot_start_us, words->slot_length_us, estimate, when);
}

/* The timer slack of ordinary threads is as long as a hand-over may take. */
static void wait_exactly(const uint32_t *word, uint32_t value, int64_t deadline) {
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    word_wait(word, value, deadline);
    prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0);
}

/* Called and returns with the lock; returns the time. */
static int64_t wait_for_turn(struct gate *gate, struct lease_work *work) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->capture_mode(&mode);
    gate->waiting++;
    int64_t when, now;
    for (;;) {
        now = clock_now();
        outstanding_look(&gate->work, now, 0);
        struct lease lease = read_lease(gate, now);
        work->estimate = pace_estimate(&gate->work.estimates, work->key, work->bytes); /* something may be learnt */
        enum pace_verdict verdict = ask(gate, &lease, now, work->estimate, &when);
        if (verdict == PACE_GO) break;
        if (verdict == PACE_OUTSIDE) {
            if (now >= lease.until || !gate->work.pace.pieces) say_end(gate, &lease, now);
            if (when > now + PATIENCE_NS) when = now + PATIENCE_NS;
        }
        gate_unlock(gate);
        wait_exactly(generation_word(gate), lease.generation, when);
        gate_lock(gate);
    }
    gate->waiting--;
    driver->capture_mode(&mode);
    return now;
}

void lease_enter(unsigned gpu, struct lease_work *work) {
    struct gate *gate = &gates[gpu];
    gate_lock(gate);
    open_gate(gate);
    int64_t when, now = clock_now();
    work->estimate = pace_estimate(&gate->work.estimates, work->key, work->bytes);
    if (gate->work.ended) {
        pace_gap(&gate->gaps, now - gate->work.ended);
        gate->work.ended = 0;
    }
    struct lease lease = read_lease(gate, now);
    if (ask(gate, &lease, now, work->estimate, &when) != PACE_GO) now = wait_for_turn(gate, work);
    if (!said_active(gate)) say(gate, LEASE_ACTIVE, read_lease(gate, now).generation, now);
    work->unknown = !pace_known(&gate->work.estimates, work->key);
    gate->entering++;
    gate->unknown += (unsigned)work->unknown;
    gate->entered = work->entered = now;
    gate_unlock(gate);
}

void lease_leave(unsigned gpu, const struct lease_work *work, CUstream stream, int launched) {
    struct gate *gate = &gates[gpu];
    gate_lock(gate);
    gate->entering--;
    gate->unknown -= (unsigned)work->unknown;
    if (!gate->keeper) start_keeper(gate);
    if (launched) outstanding_add(&gate->work, work, stream);
    else if (!gate->work.pace.pieces) gate->work.ended = clock_now();
    ring(gate);
    gate_unlock(gate);
}

void lease_idle(unsigned gpu) {
    struct gate *gate = &gates[gpu];
    gate_lock(gate);
    if (gate->work.pace.pieces) {
        int64_t now = clock_now();
        outstanding_look(&gate->work, now, 1);
        if (!gate->work.pace.pieces && !gate->entering && !gate->waiting) {
            struct lease lease = read_lease(gate, now);
            say_idle(gate, &lease, now);
        }
    }
    gate_unlock(gate);
}
