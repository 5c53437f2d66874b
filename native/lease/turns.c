#include "turns.h"
#include "gangs.h"
#include "meter.h"
#include "pace.h"

#include <string.h>

/* A lease that no other tenant wants is renewed this seldom, and ended early when another tenant wants it. */
#define ALONE (200 * LEASE_MS)
/* How long before its end a lease is extended: the holder must not run out of work while it waits for the extension. */
#define LEAD (1 * LEASE_MS)
/* A holder that sends nothing for this long after the end of its lease loses the GPU. */
#define DEADLINE (100 * LEASE_MS)
/* How many turns in a row are granted at once to a tenant that would be chosen again each time. */
#define TURNS_AT_ONCE 4
/* A tenant that is behind its share by more than this keeps its turn through its gaps, and ends another's turn when it
 * wakes. */
#define BEHIND (5 * LEASE_MS)
/* A parked lease has no end; the heartbeat bounds it. */
#define PARKED (3600 * 1000 * LEASE_MS)

static int64_t latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static int64_t earliest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void lease_gpu_init(struct lease_gpu *gpu)
{
    memset(gpu, 0, sizeof *gpu);
    gpu->holder = gpu->left = gpu->lender = -1;
    gpu->decide_at = gpu->silent_at = gpu->retry_at = LEASE_NEVER;
}

/* ---- the words of the page ---- */

static void store_until(struct lease_tenant *tenant, int64_t until)
{
    __atomic_store_n(&tenant->words->lease_until_ns, (uint64_t)until, __ATOMIC_RELEASE);
}

/* Start a new generation for the tenant, for which none of its processes has reported yet, and wake it. */
static void announce(struct lease_gpu *gpu, int who, int64_t until)
{
    struct lease_tenant *tenant = &gpu->tenants[who];
    store_until(tenant, until);
    __atomic_store_n(&tenant->words->lease_generation, tenant->words->lease_generation + 1, __ATOMIC_RELEASE);
    tenant->near = tenant->drained = 0;
    tenant->ends = 0;
    gpu->wake |= UINT64_C(1) << who;
}

static int others_wait(const struct lease_gpu *gpu, int who)
{
    for (int i = 0; i < gpu->accounts.count; i++) {
        const struct lease_account *account = &gpu->accounts.of[i];
        if (i != who && account->used && account->demand && !account->suspect)
            return 1;
    }
    return 0;
}

static int beside_higher(const struct lease_gpu *gpu, int who)
{
    for (int i = 0; i < gpu->accounts.count; i++) {
        const struct lease_account *account = &gpu->accounts.of[i];
        if (account->used && gpu->tenants[i].present && account->priority > gpu->accounts.of[who].priority)
            return 1;
    }
    return 0;
}

/* A change of flags wakes no tenant: tenants read them with the next launch. */
static void show_flags(struct lease_gpu *gpu)
{
    for (int i = 0; i < gpu->accounts.count; i++) {
        if (!gpu->accounts.of[i].used)
            continue;
        uint32_t flags = beside_higher(gpu, i) ? LEASE_BESIDE_HIGHER : 0;
        if (i == gpu->holder && (gpu->lender >= 0 || gpu->catches_up))
            flags |= LEASE_BESIDE_HIGHER;
        if (gpu->together)
            flags |= LEASE_CONTENDED | LEASE_TOGETHER; /* others may wait on another of the GPUs */
        else if (others_wait(gpu, i))
            flags |= LEASE_CONTENDED;
        __atomic_store_n(&gpu->tenants[i].words->lease_flags, flags, __ATOMIC_RELAXED);
    }
}

/* ---- time ---- */

static void touch_all(struct lease_gpu *gpu, int64_t now)
{
    for (int i = 0; i < gpu->accounts.count; i++)
        if (gpu->accounts.of[i].used)
            lease_touch(&gpu->accounts.of[i], now, i == gpu->holder && !gpu->parked);
}

static int choose(struct lease_gpu *gpu, int64_t now, int64_t pending, int64_t *retry)
{
    touch_all(gpu, now);
    return lease_choose(&gpu->accounts, now, pending ? gpu->holder : -1, pending, retry);
}

static int64_t turn_of(struct lease_gpu *gpu, int who)
{
    const struct lease_account *account = &gpu->accounts.of[who];
    return account->limit >= 1 && !others_wait(gpu, who) ? ALONE : lease_quantum(account);
}

/* A lease ends when another tenant would be chosen. The holder then reports that it is near its end, so a timer is only
 * needed for holders that send nothing. A lease without competition is extended before it ends. */
static void extend(struct lease_gpu *gpu, int64_t until, int64_t now)
{
    int64_t retry;
    int contended = others_wait(gpu, gpu->holder);
    for (int turn = 1; contended && turn < TURNS_AT_ONCE; turn++) {
        if (choose(gpu, now, until - now, &retry) != gpu->holder)
            break;
        until += lease_quantum(&gpu->accounts.of[gpu->holder]);
    }
    gpu->until = until;
    gpu->decide_at = contended ? LEASE_NEVER : until - LEAD;
    gpu->silent_at = contended ? until + DEADLINE : LEASE_NEVER;
    announce(gpu, gpu->holder, until);
}

/* Ask the holder to finish: it reports when its work is near its end. */
static void end_soon(struct lease_gpu *gpu, int64_t until, int64_t now)
{
    gpu->until = until;
    gpu->decide_at = LEASE_NEVER;
    gpu->silent_at = latest(until, now) + DEADLINE;
    announce(gpu, gpu->holder, until);
}

/* When the work of the turn that ends now will be done: the tenant's announcement, within plausible bounds. */
static int64_t end_of_work(const struct lease_gpu *gpu, int64_t now)
{
    const struct lease_tenant *tenant = &gpu->tenants[gpu->holder];
    return latest(now, earliest(tenant->ends, now + METER_STAMP_REACH));
}

/* A moving average; the first value counts in full. */
static int64_t averaged(int64_t before, int64_t value)
{
    return before ? before + (value - before) / 8 : value;
}

/* A turn begins. If the tenant had lent a gap, record how long it waited. */
static void note_return(struct lease_tenant *tenant, int64_t now)
{
    if (tenant->lent_at)
        tenant->lent = averaged(tenant->lent, earliest(now - tenant->lent_at, LEASE_QUANTUM));
    tenant->lent_at = 0;
}

/* The holder's turn is over: its remaining work ends as announced, or runs on. Returns when the next turn begins. */
static int64_t end_turn(struct lease_gpu *gpu, int64_t now)
{
    struct lease_tenant *tenant = &gpu->tenants[gpu->holder];
    int64_t end = now;
    gpu->left = gpu->holder;
    if (tenant->near >= tenant->active)
        end = tenant->drained < tenant->active ? end_of_work(gpu, now) : now;
    meter_until(gpu, end);
    tenant->left_at = 0;
    if (tenant->near < tenant->active)
        gpu->late |= UINT64_C(1) << gpu->holder;
    else if (tenant->drained < tenant->active)
        tenant->left_at = end;
    return end;
}

/* End the present turn and make the next tenant (-1: none) the holder. `quiet`: the holder already knows. Returns when
 * the next turn begins. */
static int64_t change_holder(struct lease_gpu *gpu, int next, int64_t now, int quiet)
{
    int before = gpu->holder;
    int64_t end = before >= 0 && !gpu->parked ? end_turn(gpu, now) : now;
    meter_until(gpu, end);
    gpu->turns++;
    gpu->decide_at = gpu->silent_at = LEASE_NEVER;
    if (before >= 0) {
        if (quiet)
            store_until(&gpu->tenants[before], earliest(gpu->until, now));
        else
            announce(gpu, before, now);
    }
    gpu->parked = 0;
    gpu->holder = next;
    gpu->turn_at = end;
    if (next < 0)
        return end;
    note_return(&gpu->tenants[next], end);
    gpu->late &= ~(UINT64_C(1) << next);
    gpu->tenants[next].left_at = 0;
    return end;
}

static void start_turn(struct lease_gpu *gpu, int next, int64_t now, int quiet)
{
    int64_t begins = change_holder(gpu, next, now, quiet);
    if (next >= 0)
        extend(gpu, begins + turn_of(gpu, next), now);
}

static void try_grant(struct lease_gpu *gpu, int64_t now)
{
    int64_t retry;
    gpu->retry_at = LEASE_NEVER;
    if (gpu->together || (gpu->holder >= 0 && !gpu->parked))
        return;
    int next = choose(gpu, now, 0, &retry);
    if (next < 0)
        gpu->retry_at = retry;
    else if (next != gpu->holder)
        start_turn(gpu, next, now, 0);
}

/* The end of a lease is near (`near`: the holder's work ends). Choose the next turn. */
static void decide(struct lease_gpu *gpu, int64_t now, int near)
{
    int64_t retry, end = latest(gpu->until, now);
    int holder = gpu->holder;
    meter_until(gpu, now);
    int next = choose(gpu, now, near ? 0 : end - now, &retry);
    if (gpu->lender >= 0 && gpu->lender != holder && gpu->accounts.of[gpu->lender].demand)
        next = gpu->lender;
    if (next == holder) {
        extend(gpu, end + turn_of(gpu, holder), now);
    } else if (near || gpu->tenants[holder].near >= gpu->tenants[holder].active) {
        gpu->lender = -1;
        start_turn(gpu, next, now, near);
        if (next < 0)
            gpu->retry_at = retry;
    } else {
        gpu->decide_at = LEASE_NEVER;
        gpu->silent_at = end + DEADLINE;
    }
}

/* ---- reactions to tenants ---- */

/* The holder has no work. */
static void on_handback(struct lease_gpu *gpu, int64_t now)
{
    int64_t retry;
    int holder = gpu->holder;
    meter_until(gpu, now);
    gpu->lender = -1;
    int next = choose(gpu, now, 0, &retry);
    if (next >= 0 || gpu->accounts.of[holder].limit < 1) {
        start_turn(gpu, next, now, 0);
        if (next < 0)
            gpu->retry_at = retry;
        return;
    }
    gpu->parked = 1;
    gpu->decide_at = gpu->silent_at = LEASE_NEVER;
    gpu->retry_at = retry;
    gpu->until = now + PARKED;
    announce(gpu, holder, gpu->until);
}

static int choose_another(struct lease_gpu *gpu, int64_t now)
{
    int64_t retry;
    struct lease_account *mine = &gpu->accounts.of[gpu->holder];
    uint32_t demand = mine->demand;
    mine->demand = 0;
    int next = choose(gpu, now, 0, &retry);
    mine->demand = demand;
    return next;
}

/* Whether the tenant reaches its share even if it lends every gap. */
static int can_lend(const struct lease_gpu *gpu, int who)
{
    const struct lease_tenant *tenant = &gpu->tenants[who];
    double all = gpu->accounts.of[who].weight;
    for (int i = 0; i < gpu->accounts.count; i++) {
        const struct lease_account *account = &gpu->accounts.of[i];
        if (i != who && account->used && account->demand && !account->suspect)
            all += account->weight;
    }
    return (double)tenant->burst * all > (double)(tenant->burst + tenant->lent) * gpu->accounts.of[who].weight;
}

/* The holder is, or soon will be, between two synchronous calls. Another tenant may use the gap, unless the holder is
 * behind its share and would stay behind. */
static void on_gap(struct lease_gpu *gpu, int64_t stamp, int64_t now)
{
    int holder = gpu->holder;
    struct lease_tenant *tenant = &gpu->tenants[holder];
    const struct lease_account *mine = &gpu->accounts.of[holder];
    if (gpu->lender >= 0)
        return;
    meter_until(gpu, mine->demand ? now : meter_believed(gpu, stamp, now));
    if (gpu->turn_at)
        tenant->burst = averaged(tenant->burst, latest(now - gpu->turn_at, 1));
    gpu->turn_at = 0;
    int next = choose_another(gpu, now);
    if (next < 0 || gpu->accounts.of[next].priority < mine->priority)
        return;
    int behind = (gpu->accounts.of[next].virtual_time - mine->virtual_time) * mine->weight > BEHIND;
    if (behind && !can_lend(gpu, holder))
        return;
    if (!mine->demand)
        gpu->charge_from = now; /* the message took the rest of the time, in which the GPU was idle */
    start_turn(gpu, next, now, 0);
    tenant->lent_at = now;
    gpu->lender = holder;
}

static void on_demand(struct lease_gpu *gpu, int who, int64_t now)
{
    int64_t retry;
    int holder = gpu->holder;
    meter_until(gpu, now); /* a new tenant starts where the others are now */
    lease_admit(&gpu->accounts, who, now);
    if (holder == who || gpu->together)
        return;
    if (holder < 0 || gpu->parked) {
        try_grant(gpu, now);
        return;
    }
    const struct lease_account *mine = &gpu->accounts.of[who], *other = &gpu->accounts.of[holder];
    if (gpu->lender == who) { /* it gets its turn back when the other has caught up */
        double ahead = (mine->virtual_time - other->virtual_time) * other->weight - BEHIND;
        end_soon(gpu, now + (int64_t)(ahead > 0 ? ahead < LEASE_QUANTUM ? ahead : LEASE_QUANTUM : 0), now);
        return;
    }
    int higher = mine->priority > other->priority;
    int behind = (other->virtual_time - mine->virtual_time) * mine->weight > BEHIND;
    if (!higher && gpu->until - now <= 3 * LEASE_QUANTUM / 2 && !behind)
        return;
    int next = choose(gpu, now, 0, &retry);
    if (next == who && higher) {
        gpu->lender = -1;
        start_turn(gpu, who, now, 0);
    } else if (!higher) {
        if (next == who)
            end_soon(gpu, now, now);
        else if (gpu->until - now > LEASE_QUANTUM)
            extend(gpu, now + LEASE_QUANTUM, now);
    }
}

/* A parked lease is used again. */
static void on_unpark(struct lease_gpu *gpu, int64_t now)
{
    gpu->parked = 0;
    gpu->charge_from = now;
    extend(gpu, now + turn_of(gpu, gpu->holder), now);
}

/* The holder kept the GPU past the deadline. Its work continues next to the next tenant's. */
static void on_silence(struct lease_gpu *gpu, int64_t now)
{
    int64_t retry;
    gpu->accounts.of[gpu->holder].suspect = gpu->tenants[gpu->holder].spoke_at < gpu->until;
    gpu->lender = -1;
    int next = choose(gpu, now, 0, &retry);
    start_turn(gpu, next, now, 0);
    if (next < 0)
        gpu->retry_at = retry;
}

/* ---- processes ---- */

static void count(struct lease_tenant *tenant, struct lease_process *process, int by)
{
    uint64_t generation = tenant->words->lease_generation;
    if (!process->active)
        return;
    tenant->active += (uint32_t)by;
    if (process->near == generation)
        tenant->near += (uint32_t)by;
    if (process->drained == generation)
        tenant->drained += (uint32_t)by;
}

static void note(struct lease_tenant *tenant, struct lease_process *process, unsigned state, int64_t stamp, int current)
{
    uint64_t generation = tenant->words->lease_generation;
    count(tenant, process, -1);
    process->active = (state & LEASE_ACTIVE) != 0;
    if (current) {
        process->near = state & LEASE_NEAR ? generation : 0;
        process->drained = state & LEASE_DRAINED ? generation : 0;
        if (state & LEASE_NEAR)
            tenant->ends = latest(tenant->ends, stamp);
    }
    count(tenant, process, 1);
}

/* Update the tenant as a whole after one of its processes reported `state`. */
static void follow(struct lease_gpu *gpu, int who, unsigned state, int64_t stamp, int64_t now)
{
    struct lease_account *account = &gpu->accounts.of[who];
    struct lease_tenant *tenant = &gpu->tenants[who];
    int before = (int)account->demand, idle = tenant->active == 0;
    account->suspect = 0;
    meter_silence(gpu, now);
    tenant->spoke_at = now;
    if (before || !idle)
        tenant->wanted_at = now;
    lease_touch(account, now, gpu->holder == who && !gpu->parked);
    account->demand = !idle;
    if (!idle && !before)
        on_demand(gpu, who, now);
    if (idle)
        account->admitted = 0;
    if (gpu->holder != who) {
        if (meter_is_late(gpu, who) && tenant->near >= tenant->active)
            meter_late_end(gpu, who, idle ? stamp : tenant->ends, now);
        else if (tenant->left_at && state & LEASE_DRAINED)
            meter_ended(gpu, who, stamp, now);
        else if (state == LEASE_ACTIVE && !meter_is_late(gpu, who))
            meter_running_on(gpu, who, now);
    } else if (gpu->together) {
        return;
    } else if (gpu->parked) {
        if (!idle)
            on_unpark(gpu, now);
    } else if (idle) {
        if (state & LEASE_SOON)
            on_gap(gpu, stamp, now);
        else
            on_handback(gpu, now);
    } else if (tenant->near >= tenant->active) {
        if (state & LEASE_SOON)
            on_gap(gpu, stamp, now);
        else
            decide(gpu, now, 1);
    }
}

void lease_gpu_join(struct lease_gpu *gpu, int who, struct lease_process *process)
{
    memset(process, 0, sizeof *process);
    process->present = 1;
    gpu->tenants[who].present++;
    show_flags(gpu);
}

void lease_gpu_say(struct lease_gpu *gpu, int who, struct lease_process *process, const struct lease_message *message,
                   int64_t now)
{
    struct lease_tenant *tenant = &gpu->tenants[who];
    int current = message->generation == (uint32_t)tenant->words->lease_generation;
    note(tenant, process, message->state, message->stamp, current);
    follow(gpu, who, message->state, message->stamp, now);
    show_flags(gpu);
}

void lease_gpu_leave(struct lease_gpu *gpu, int who, struct lease_process *process, int64_t now)
{
    if (!process->present)
        return;
    note(&gpu->tenants[who], process, 0, now, 0);
    process->present = 0;
    gpu->tenants[who].present--;
    follow(gpu, who, 0, now, now);
    show_flags(gpu);
}

/* ---- tenants ---- */

int lease_gpu_add(struct lease_gpu *gpu, struct mg_gpu_limits *words)
{
    for (int i = 0; i < LEASE_TENANTS; i++) {
        if (gpu->accounts.of[i].used)
            continue;
        memset(&gpu->accounts.of[i], 0, sizeof gpu->accounts.of[i]);
        memset(&gpu->tenants[i], 0, sizeof gpu->tenants[i]);
        gpu->tenants[i].words = words;
        if (gpu->accounts.count <= i)
            gpu->accounts.count = i + 1;
        announce(gpu, i, 0); /* revoke what an earlier arbiter granted */
        return i;
    }
    return -1;
}

void lease_gpu_configure(struct lease_gpu *gpu, int who, int policy, unsigned milli, unsigned limit, unsigned priority,
                         int64_t now)
{
    struct lease_account *account = &gpu->accounts.of[who];
    if (account->used)
        lease_touch(account, now, gpu->holder == who && !gpu->parked);
    lease_configure(account, policy, milli, limit, priority, now);
    if (gpu->holder == who && !gpu->parked && !gpu->together && gpu->until > now + LEASE_QUANTUM) {
        meter_until(gpu, now);
        extend(gpu, now + LEASE_QUANTUM, now);
    }
    try_grant(gpu, now); /* a tenant that waited for tokens may have a higher limit now */
    show_flags(gpu);
}

void lease_gpu_remove(struct lease_gpu *gpu, int who, int64_t now)
{
    meter_until(gpu, now);
    if (gpu->lender == who)
        gpu->lender = -1;
    if (gpu->left == who)
        gpu->left = -1;
    gpu->late &= ~(UINT64_C(1) << who);
    gpu->accounts.of[who].used = 0;
    announce(gpu, who, 0);
    if (gpu->holder == who) {
        gpu->holder = gpu->lender = -1;
        gpu->parked = gpu->catches_up = 0;
        gpu->decide_at = gpu->silent_at = LEASE_NEVER;
        try_grant(gpu, now);
    }
    show_flags(gpu);
}

void lease_gpu_settle(struct lease_gpu *gpu, int64_t now)
{
    meter_until(gpu, now);
    touch_all(gpu, now);
}

int64_t lease_gpu_due(const struct lease_gpu *gpu)
{
    return earliest(gpu->silent_at, earliest(gpu->decide_at, gpu->retry_at));
}

void lease_gpu_timer(struct lease_gpu *gpu, int64_t now)
{
    if (gpu->silent_at <= now)
        on_silence(gpu, now);
    if (gpu->decide_at <= now)
        decide(gpu, now, 0);
    if (gpu->retry_at <= now)
        try_grant(gpu, now);
    show_flags(gpu);
}

/* ---- GPUs that are leased together ---- */

void lease_gpu_begin(struct lease_gpu *gpu, int next, int64_t until, int64_t now)
{
    const struct lease_tenant *tenant = &gpu->tenants[gpu->holder < 0 ? 0 : gpu->holder];
    change_holder(gpu, next, now, tenant->near >= tenant->active && now >= gpu->until);
    gpu->catches_up = 0;
    if (next >= 0)
        lease_gpu_prolong(gpu, until, now);
}

void lease_gpu_prolong(struct lease_gpu *gpu, int64_t until, int64_t now)
{
    meter_until(gpu, now);
    gpu->until = until;
    announce(gpu, gpu->holder, until);
}

void lease_gpu_suspect(struct lease_gpu *gpu)
{
    gpu->accounts.of[gpu->holder].suspect = gpu->tenants[gpu->holder].spoke_at < gpu->until;
}

/* A holder keeps its turn; it ends now, and who is next is decided as on the other GPUs. */
void lease_gpu_together(struct lease_gpu *gpu, int together, int64_t now)
{
    gpu->together = together;
    gpu->catches_up = 0;
    gpu->lender = -1;
    gpu->decide_at = gpu->silent_at = gpu->retry_at = LEASE_NEVER;
    if (gpu->holder < 0)
        try_grant(gpu, now);
    else if (together && gpu->parked)
        change_holder(gpu, -1, now, 0);
    else if (together)
        lease_gpu_prolong(gpu, now, now);
    else if (gpu->accounts.of[gpu->holder].demand)
        end_soon(gpu, now, now);
    else
        on_handback(gpu, now);
    show_flags(gpu);
}

void lease_gpu_show(struct lease_gpu *gpu)
{
    show_flags(gpu);
}

/* For code that mirrors the structures in another language. */
const uint32_t lease_sizes[] = {
    sizeof(struct lease_account),  sizeof(struct lease_tenant),  sizeof(struct lease_gpu),
    sizeof(struct lease_process),  sizeof(struct lease_message), sizeof(struct pace),
    sizeof(struct pace_estimates), sizeof(struct lease_span),    sizeof(struct lease_gangs)};
