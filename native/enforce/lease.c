#define _GNU_SOURCE
#include "lease.h"
#include "link.h"
#include "outstanding.h"
#include "pace.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

/* The longest sleep while waiting for the arbiter. A change wakes the sleeper; this bounds the wait if the arbiter
 * dies. */
#define PATIENCE_NS (INT64_C(50) * 1000000)
/* How often to check for the end of overdue work. */
#define STEP_NS INT64_C(20000)
/* How often to check, after the lease has ended, whether the work is done: other tenants wait for it, and estimates may
 * be too long. */
#define DRAIN_STEP_NS INT64_C(100000)
/* How much work one event marks. Each costs three to four calls of the driver. While others wait, half of what may be
 * outstanding; alone on the GPU, half of what may be outstanding then. */
#define BATCH_NS INT64_C(2000000)
#define BATCH_ALONE_NS INT64_C(10000000)
/* Smaller batches shortly before the end of the lease: others begin when the work ends. */
#define BATCH_LAST_NS INT64_C(400000)

/* How late the watcher may look when the tenant is alone: each look takes the lock from a thread that launches. */
#define LATE_ALONE_NS INT64_C(1000000)
#define LATE_LIMITED_NS INT64_C(150000)
enum { WHOLE_MILLI = 1000 };

/* One GPU as this process uses it. */
struct gate {
    uint32_t lock; /* protects everything below; 0 free, 1 taken, 2 taken with waiters */
    uint32_t bell; /* incremented to wake the watcher */
    unsigned gpu;
    int watcher;                /* the watcher thread of this gate runs */
    int asleep;                 /* the watcher sleeps until the bell rings, or */
    int64_t wakes_at;           /* until then */
    int64_t entered;            /* when the last thread was admitted */
    unsigned entering, waiting; /* threads between enter and leave; threads that wait in enter */
    unsigned unknown;           /* entering threads whose work is of an unknown kind */
    struct outstanding work;
    struct pace_gaps gaps;
    /* The last message to the arbiter. */
    unsigned said, said_number;
    uint32_t said_generation;
    int64_t said_at;
    int64_t predicted_end; /* the predicted end of the work */
};

static const struct mg_limits_page *page;
static const struct lease_driver *driver;
static struct gate gates[MG_PAGE_GPUS];
static unsigned captures; /* streams of this process that are being captured; never too few */

/* ---- a lock that costs two atomic instructions when uncontended ---- */

/* The lock is held for less time than sleeping and waking up takes. */
enum { SPINS = 100 };

static void gate_lock(struct gate *gate)
{
    for (int turn = 0; turn < SPINS; turn++) {
        uint32_t seen = 0;
        if (__atomic_compare_exchange_n(&gate->lock, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
        if (seen == 2)
            break;
    }
    while (__atomic_exchange_n(&gate->lock, 2, __ATOMIC_ACQUIRE) != 0)
        word_wait(&gate->lock, 2, INT64_MAX);
}

static void gate_unlock(struct gate *gate)
{
    if (__atomic_exchange_n(&gate->lock, 0, __ATOMIC_RELEASE) == 2)
        word_wake(&gate->lock);
}

/* Wake the watcher, unless it wakes up by itself before there is something to see, or soon enough. */
static void ring(struct gate *gate, int64_t now, int64_t late)
{
    if (!gate->asleep || gate->wakes_at <= now + gate->work.pace.estimate + late)
        return;
    gate->asleep = 0;
    __atomic_add_fetch(&gate->bell, 1, __ATOMIC_RELEASE);
    word_wake(&gate->bell);
}

/* ---- the words of the page ---- */

struct lease {
    uint32_t generation;
    unsigned flags;
    int64_t until; /* at most LEASE_HEARTBEAT_OLD_NS after the last heartbeat */
    int alive;     /* the arbiter's heartbeat is recent */
};

static const uint32_t *generation_word(const struct gate *gate)
{
    return (const uint32_t *)&page->gpus[gate->gpu].lease_generation; /* the low half: little-endian */
}

static struct lease read_lease(const struct gate *gate, int64_t now)
{
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

/* ---- messages to the arbiter ---- */

/* Send the state, unless it equals the last message. */
static void say(struct gate *gate, unsigned state, uint32_t generation, int64_t stamp)
{
    if (gate->said == state && gate->said_generation == generation && gate->said_number == link_number())
        return;
    struct lease_message message = {
        .gpu = (uint8_t)gate->gpu, .state = (uint8_t)state, .generation = generation, .stamp = stamp};
    gate->said_number = link_say(&message);
    gate->said = state;
    gate->said_generation = generation;
    gate->said_at = clock_now();
}

static int said_active(const struct gate *gate)
{
    return gate->said & LEASE_ACTIVE && gate->said_number;
}

/* Whether others may use the program's gaps: they wait, and the gap is not one of only one of the tenant's GPUs. */
static int lends_gaps(const struct gate *gate, const struct lease *lease)
{
    return (lease->flags & (LEASE_CONTENDED | LEASE_TOGETHER)) == LEASE_CONTENDED && pace_soon(&gate->gaps);
}

static int said_near(const struct gate *gate, uint32_t generation)
{
    return said_active(gate) && gate->said & LEASE_NEAR && gate->said_generation == generation
           && gate->said_number == link_number();
}

/* The work does not end soon, or its end is unknown. After the lease, tell the arbiter that the work runs on, and
 * repeat it from time to time to show that the end will be noticed. Returns when to check again. */
static int64_t say_running_on(struct gate *gate, const struct lease *lease, int64_t now)
{
    int64_t first = lease->until + LEASE_RUNS_ON_NS;
    if (now < first && !said_near(gate, lease->generation))
        return first;
    if (now - gate->said_at > LEASE_RUNNING_ON_NS)
        gate->said = 0;
    say(gate, LEASE_ACTIVE, lease->generation, now);
    return now + LEASE_RUNNING_ON_NS;
}

/* Work is being handed to the driver, or its end on the GPU is unknown. */
static int uncertain(const struct gate *gate, int64_t now)
{
    return gate->entering || pace_uncertain(&gate->work.pace, now);
}

/* When to check again whether that has changed. */
static int64_t look_at(const struct gate *gate, int64_t now)
{
    int64_t again = pace_look_at(&gate->work.pace, now), step = (now - gate->entered) / 16;
    if (!gate->entering)
        return again;
    if (step < STEP_NS)
        step = STEP_NS;
    return again < now + step ? again : now + step;
}

/* At the end of the lease, or of what may be launched in it: report when the end is near and when the work will be
 * done. Report again when it is done, unless the prediction was right. Returns when to check again. */
static int64_t say_end(struct gate *gate, const struct lease *lease, int64_t now)
{
    int64_t end = now + pace_left(&gate->work.pace, now), near = end > lease->until ? end : lease->until;
    int predicted = said_near(gate, lease->generation);
    if (uncertain(gate, now))
        return say_running_on(gate, lease, now);
    if (!predicted && near - now > LEASE_OVERLAP_NS) {
        int64_t again = say_running_on(gate, lease, now);
        return again < near - LEASE_OVERLAP_NS ? again : near - LEASE_OVERLAP_NS;
    }
    if (gate->work.pace.pieces) {
        if (predicted)
            return now + STEP_NS;
        gate->predicted_end = end;
        say(gate, LEASE_ACTIVE | LEASE_NEAR, lease->generation, end);
        return now + STEP_NS;
    }
    int64_t off = gate->work.ended ? gate->work.ended - gate->predicted_end : 0;
    if (!predicted || off > LEASE_PREDICTED_NS || off < -LEASE_PREDICTED_NS)
        say(gate, LEASE_ACTIVE | LEASE_NEAR | LEASE_DRAINED, lease->generation,
            gate->work.ended ? gate->work.ended : now);
    return INT64_MAX;
}

/* There is no work: keep the lease for a moment, then hand it back. Returns when to check again. */
static int64_t say_idle(struct gate *gate, const struct lease *lease, int64_t now)
{
    int64_t hold = now < lease->until ? gate->work.ended + pace_hold(&gate->gaps) : now;
    if (!said_active(gate) && !(gate->said & LEASE_SOON))
        return INT64_MAX;
    if (now < hold) {
        if (lends_gaps(gate, lease))
            say(gate, LEASE_SOON | LEASE_NEAR | LEASE_DRAINED, lease->generation, gate->work.ended);
        return hold;
    }
    say(gate, LEASE_NEAR | LEASE_DRAINED, lease->generation, gate->work.ended);
    return INT64_MAX;
}

/* For a program that waits for each result and soon submits again: announce the gap shortly before it starts. */
static int64_t say_gap(struct gate *gate, const struct lease *lease, int64_t now)
{
    int64_t left = pace_left(&gate->work.pace, now);
    if (uncertain(gate, now) || gate->waiting || now >= lease->until || gate->work.pace.estimate < 2 * LEASE_OVERLAP_NS
        || !lends_gaps(gate, lease))
        return INT64_MAX;
    if (left > LEASE_OVERLAP_NS)
        return now + left - LEASE_OVERLAP_NS;
    gate->predicted_end = now + left;
    say(gate, LEASE_ACTIVE | LEASE_NEAR | LEASE_SOON, lease->generation, gate->predicted_end);
    return INT64_MAX;
}

/* ---- the watcher: one thread per GPU in use, which notices the end of work while the program does something else ----
 */

/* Sleep until the page changes while there is work, else until the bell rings. Called and returns with the lock. */
static void watcher_sleep(struct gate *gate, const struct lease *lease, int64_t when)
{
    if (gate->work.pace.pieces) {
        gate_unlock(gate);
        word_wait(generation_word(gate), lease->generation, when);
    } else {
        uint32_t bell = __atomic_load_n(&gate->bell, __ATOMIC_RELAXED);
        gate->asleep = 1;
        gate->wakes_at = when;
        gate_unlock(gate);
        word_wait(&gate->bell, bell, when);
    }
    gate_lock(gate);
    gate->asleep = 0;
}

/* How late the watcher may notice the end of work. While others wait, they wait for it. Alone, only the account is
 * late: the arbiter believes a time stamp that is up to 0.2 ms old, so a tenant with a limit is watched more closely.
 */
static int64_t lateness(const struct gate *gate, struct lease lease)
{
    const struct mg_gpu_limits *words = &page->gpus[gate->gpu];
    if (!lease.alive || lease.flags & (LEASE_CONTENDED | LEASE_BESIDE_HIGHER))
        return 0;
    return words->policy == MG_POLICY_FIXED || words->limit < WHOLE_MILLI ? LATE_LIMITED_NS : LATE_ALONE_NS;
}

static int64_t watcher_look(struct gate *gate, struct lease *lease)
{
    int64_t now = clock_now();
    outstanding_look(&gate->work, now, LOOK);
    *lease = read_lease(gate, now);
    if (!gate->work.pace.pieces && !gate->entering && !gate->waiting)
        return say_idle(gate, lease, now);
    if (!gate->work.pace.pieces && now < lease->until) {
        /* the work ended before the lease: threads that wait for its end may continue */
        word_wake(generation_word(gate));
        return INT64_MAX;
    }
    int64_t when = say_end(gate, lease, now), gap = say_gap(gate, lease, now);
    int64_t again = look_at(gate, now);
    if (gap < again)
        again = gap;
    if (gate->work.pace.pieces && now >= lease->until && now + DRAIN_STEP_NS < again)
        again = now + DRAIN_STEP_NS;
    int64_t least = now + lateness(gate, *lease);
    again = when < again ? when : again;
    return again > least ? again : least;
}

static void *watch(void *argument)
{
    struct gate *gate = argument;
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->capture_mode(&relaxed); /* querying events must not disturb a capture of the program */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    prctl(PR_SET_NAME, "milligpu", 0, 0, 0);
    gate_lock(gate);
    for (;;) {
        struct lease lease;
        int64_t when = watcher_look(gate, &lease);
        if (gate->work.pace.pieces && when - clock_now() > PATIENCE_NS)
            when = clock_now() + PATIENCE_NS;
        watcher_sleep(gate, &lease, when);
    }
    return NULL;
}

static void start_watcher(struct gate *gate)
{
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t attributes;
    gate->watcher = 1;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    sigfillset(&all); /* signals are for the program's threads */
    sigprocmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, &attributes, watch, gate))
        gate->watcher = 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* ---- the program's threads ---- */

/* Threads and work stay in the parent. */
static void after_fork(void)
{
    for (unsigned i = 0; i < MG_PAGE_GPUS; i++)
        if (gates[i].work.driver)
            memset(&gates[i], 0, sizeof gates[i]);
    captures = 0;
    link_forget();
}

/* Gates are large and few are used, so each is set up on first use. Called with the lock. */
static void open_gate(struct gate *gate)
{
    if (gate->work.driver)
        return;
    gate->gpu = (unsigned)(gate - gates);
    gate->work.driver = driver;
}

void lease_start(const struct mg_limits_page *limits, const char *folder, const struct lease_driver *calls)
{
    if (!page)
        pthread_atfork(NULL, NULL, after_fork); /* once, although a child starts again */
    page = limits;
    driver = calls;
    link_start(folder);
}

static enum pace_decision ask(struct gate *gate, const struct lease *lease, int64_t now, int64_t estimate,
                              int64_t *when)
{
    const struct mg_gpu_limits *words = &page->gpus[gate->gpu];
    int alone = lease->alive && !(lease->flags & (LEASE_CONTENDED | LEASE_BESIDE_HIGHER));
    if (gate->unknown && !alone) {
        *when = look_at(gate, now);
        return PACE_FULL;
    }
    if (lease->alive)
        return pace_gate(&gate->work.pace, now, lease->until, lease->flags, estimate, when);
    return pace_slot(&gate->work.pace, now, words->time_slot_start_us, words->time_slot_length_us, estimate, when);
}

/* The timer slack of ordinary threads is as long as a hand-over may take. */
static void wait_exactly(const uint32_t *word, uint32_t value, int64_t deadline)
{
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    word_wait(word, value, deadline);
    prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0);
}

/* ---- captures, and the ends of streams and contexts ---- */

static int any_capture(void)
{
    return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) != 0;
}

/* Threads look at events with the lock. Those that did not see this capture have done so when this returns. */
void lease_capture_begins(void)
{
    __atomic_add_fetch(&captures, 1, __ATOMIC_ACQ_REL);
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        if (gates[gpu].work.driver) {
            gate_lock(&gates[gpu]);
            gate_unlock(&gates[gpu]);
        }
}

void lease_capture_ends(void)
{
    unsigned seen = __atomic_load_n(&captures, __ATOMIC_RELAXED);
    while (seen && !__atomic_compare_exchange_n(&captures, &seen, seen - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
}

/* Look, in a thread of the program. Querying an event would end a capture, of this thread or of another. */
static void look(struct gate *gate, int64_t now, enum look how)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int capturing = any_capture();
    if (capturing)
        driver->capture_mode(&mode);
    outstanding_look(&gate->work, now, how);
    if (capturing)
        driver->capture_mode(&mode);
}

int lease_is_captured(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return any_capture() && driver && driver->stream_capturing(stream, &status) == CUDA_SUCCESS
           && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void lease_stream_ends(CUstream stream)
{
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++) {
        if (!gates[gpu].work.driver)
            continue;
        gate_lock(&gates[gpu]);
        outstanding_end_stream(&gates[gpu].work, stream);
        gate_unlock(&gates[gpu]);
    }
}

static void end_contexts(struct gate *gate, CUcontext context)
{
    if (!gate->work.driver)
        return;
    gate_lock(gate);
    outstanding_end_context(&gate->work, context);
    gate_unlock(gate);
}

void lease_context_ends(CUcontext context)
{
    for (unsigned gpu = 0; context && gpu < MG_PAGE_GPUS; gpu++)
        end_contexts(&gates[gpu], context);
}

void lease_gpu_ends(unsigned gpu)
{
    end_contexts(&gates[gpu], NULL);
}

/* ---- waiting ---- */

/* Called and returns with the lock; returns the time. */
static int64_t wait_for_turn(struct gate *gate, struct lease_work *work)
{
    gate->waiting++;
    int64_t when, now;
    for (;;) {
        now = clock_now();
        look(gate, now, LOOK_ALL);
        struct lease lease = read_lease(gate, now);
        /* the estimate may have changed */
        work->estimate = pace_estimate(&gate->work.estimates, work->key, work->bytes);
        enum pace_decision decision = ask(gate, &lease, now, work->estimate, &when);
        if (decision == PACE_GO)
            break;
        if (decision == PACE_OUTSIDE) {
            if (now >= lease.until || !gate->work.pace.pieces)
                say_end(gate, &lease, now);
            if (when > now + PATIENCE_NS)
                when = now + PATIENCE_NS;
        }
        gate_unlock(gate);
        wait_exactly(generation_word(gate), lease.generation, when);
        gate_lock(gate);
    }
    gate->waiting--;
    return now;
}

/* Launches of a tenant that is alone on its GPU are counted before they are made, and need neither the exact time nor
 * the lock a second time. Only the first of a batch, and those that end one, are entered and left. */
static int join(struct gate *gate, struct lease_work *work)
{
    int64_t now = clock_coarse();
    struct lease lease = read_lease(gate, now);
    if (lease.flags & (LEASE_CONTENDED | LEASE_BESIDE_HIGHER) || now + CLOCK_COARSE_NS >= lease.until
        || !said_active(gate) || !pace_known(&gate->work.estimates, work->key))
        return 0;
    work->estimate = pace_estimate(&gate->work.estimates, work->key, work->bytes);
    return pace_fits_alone(&gate->work.pace, work->estimate) && outstanding_join(&gate->work, work, BATCH_ALONE_NS);
}

void lease_enter(unsigned gpu, struct lease_work *work)
{
    struct gate *gate = &gates[gpu];
    work->joined = 0;
    gate_lock(gate);
    open_gate(gate);
    if (gate->work.open.pieces && join(gate, work)) {
        gate_unlock(gate);
        return;
    }
    int64_t when, now = clock_now();
    work->estimate = pace_estimate(&gate->work.estimates, work->key, work->bytes);
    if (gate->work.ended) {
        pace_gap(&gate->gaps, now - gate->work.ended);
        gate->work.ended = 0;
    }
    struct lease lease = read_lease(gate, now);
    if (ask(gate, &lease, now, work->estimate, &when) != PACE_GO)
        now = wait_for_turn(gate, work);
    if (!said_active(gate))
        say(gate, LEASE_ACTIVE, read_lease(gate, now).generation, now);
    work->unknown = !pace_known(&gate->work.estimates, work->key);
    gate->entering++;
    gate->unknown += (unsigned)work->unknown;
    gate->entered = work->entered = now;
    gate_unlock(gate);
}

/* Add what was launched. If nothing may follow it in this lease, others wait for its end, which must be known. */
static void add_work(struct gate *gate, const struct lease_work *work, CUstream stream)
{
    struct lease lease = read_lease(gate, work->entered);
    int contended = !lease.alive || lease.flags & (LEASE_CONTENDED | LEASE_BESIDE_HIGHER);
    int64_t end = work->entered + pace_left(&gate->work.pace, work->entered) + work->estimate;
    enum mark mark = any_capture() ? MARK_UNSEEN : contended && end >= lease.until ? MARK_NOW : MARK;
    int64_t size = !contended ? BATCH_ALONE_NS : end + BATCH_NS >= lease.until ? BATCH_LAST_NS : BATCH_NS;
    outstanding_add(&gate->work, work, stream, size, mark);
}

void lease_leave(unsigned gpu, struct lease_work *work, CUstream stream, int launched)
{
    struct gate *gate = &gates[gpu];
    if (work->joined && launched && outstanding_is_joined(&gate->work, work))
        return;
    gate_lock(gate);
    if (work->joined) {
        work->entered = clock_now();
    } else {
        gate->entering--;
        gate->unknown -= (unsigned)work->unknown;
    }
    if (!gate->watcher)
        start_watcher(gate);
    if (launched)
        add_work(gate, work, stream); /* once more, if it was joined: it may have been taken for work that has ended */
    else if (work->joined)
        outstanding_withdraw(&gate->work, work);
    else if (!gate->work.pace.pieces)
        gate->work.ended = clock_now();
    ring(gate, work->entered, lateness(gate, read_lease(gate, work->entered)));
    gate_unlock(gate);
}

void lease_idle(unsigned gpu)
{
    struct gate *gate = &gates[gpu];
    gate_lock(gate);
    if (gate->work.pace.pieces) {
        int64_t now = clock_now();
        look(gate, now, LOOK_FRESH);
        if (!gate->work.pace.pieces && !gate->entering && !gate->waiting) {
            struct lease lease = read_lease(gate, now);
            say_idle(gate, &lease, now);
        }
    }
    gate_unlock(gate);
}
