#include "gangs.h"

/* A GPU that a tenant wanted within this time belongs to its work: between two steps it may have no demand. */
#define RECENT (2 * LEASE_HEARTBEAT_NS)
/* A tenant that wants none of its GPUs for this long ends its turn; a program waits less between two steps. */
#define IDLE (1 * LEASE_MS)
/* If the work on some GPUs does not end for this long after the others', it waits for the others. */
#define STALLED (500 * LEASE_US)
/* How long the others may then launch, one piece at a time. */
#define CATCH_UP (2 * LEASE_MS)
/* A holder that does not finish for this long after the end of its turn loses the GPU. */
#define DEADLINE (100 * LEASE_MS)
/* A tenant with less than this waits as if it had this much. */
#define SHARE_LEAST 0.01

static int64_t earliest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static uint64_t bit(int at)
{
    return UINT64_C(1) << at;
}

#define EACH_BIT(at, set)                                                                                              \
    for (uint64_t left_##at = (set); left_##at; left_##at &= left_##at - 1)                                            \
        for (int at = __builtin_ctzll(left_##at), once_##at = 1; once_##at; once_##at = 0)
#define EACH_GPU(i, span)                                                                                              \
    for (unsigned i = 0; i < MG_PAGE_GPUS; i++)                                                                        \
        if ((span)->gpus[i] >= 0)

/* ---- tenants and their GPUs ---- */

static struct lease_gpu *gpu_of(const struct lease_gangs *gangs, const struct lease_span *span, unsigned i)
{
    return gangs->gpus[span->gpus[i]];
}

static struct lease_account *account_of(const struct lease_gangs *gangs, const struct lease_span *span, unsigned i)
{
    return &gpu_of(gangs, span, i)->accounts.of[span->entries[i]];
}

/* The GPUs that the tenant wants now. */
static uint64_t demand(const struct lease_gangs *gangs, const struct lease_span *span)
{
    uint64_t found = 0;
    EACH_GPU(i, span)
    {
        const struct lease_account *account = account_of(gangs, span, i);
        if (account->demand && !account->suspect)
            found |= bit(span->gpus[i]);
    }
    return found;
}

static uint64_t wanted_lately(const struct lease_gangs *gangs, const struct lease_span *span, int64_t now)
{
    uint64_t found = demand(gangs, span);
    EACH_GPU(i, span)
    {
        int64_t at = gpu_of(gangs, span, i)->tenants[span->entries[i]].wanted_at;
        if (at && now - at < RECENT)
            found |= bit(span->gpus[i]);
    }
    return found;
}

void lease_gangs_add(struct lease_gangs *gangs, struct lease_span *span)
{
    span->next = gangs->spans;
    gangs->spans = span;
}

void lease_gangs_remove(struct lease_gangs *gangs, struct lease_span *span)
{
    for (struct lease_span **at = &gangs->spans; *at; at = &(*at)->next)
        if (*at == span) {
            *at = span->next;
            return;
        }
}

/* ---- groups ---- */

static int is_gang(uint64_t gpus)
{
    return (gpus & (gpus - 1)) != 0;
}

/* The GPUs that must be leased together with those in `members`: other gangs share some of them. */
static uint64_t closure(const struct lease_gangs *gangs, uint64_t members)
{
    for (uint64_t before = 0; before != members;) {
        before = members;
        for (const struct lease_span *span = gangs->spans; span; span = span->next)
            if (is_gang(span->wanted) && span->wanted & members)
                members |= span->wanted;
    }
    return members;
}

static int is_contended(const struct lease_gangs *gangs, const struct lease_span *gang)
{
    for (const struct lease_span *span = gangs->spans; span; span = span->next)
        if (span != gang && span->wanted & gang->wanted)
            return 1;
    return 0;
}

static void form(struct lease_gangs *gangs, uint64_t members, int64_t now)
{
    struct lease_group *group = &gangs->groups[__builtin_ctzll(members)];
    *group = (struct lease_group){.members = members, .until = now, .retry_at = LEASE_NEVER};
    gangs->grouped |= members;
    gangs->firsts |= members & -members;
    EACH_BIT(at, members) lease_gpu_together(gangs->gpus[at], 1, now);
    for (struct lease_span *span = gangs->spans; span; span = span->next) {
        if (!(span->wanted & members))
            continue;
        span->holds = 0;
        span->idle_at = 0;
        EACH_GPU(i, span)
        {
            const struct lease_gpu *gpu = gpu_of(gangs, span, i);
            if (members & bit(span->gpus[i]) && gpu->holder == span->entries[i])
                span->holds |= bit(span->gpus[i]);
        }
    }
}

static void dissolve(struct lease_gangs *gangs, int first, int64_t now)
{
    uint64_t members = gangs->groups[first].members;
    gangs->grouped &= ~members;
    gangs->firsts &= ~bit(first);
    for (struct lease_span *span = gangs->spans; span; span = span->next)
        span->holds &= ~members;
    EACH_BIT(at, members) lease_gpu_together(gangs->gpus[at], 0, now);
}

void lease_gangs_group(struct lease_gangs *gangs, int64_t now)
{
    uint64_t wanted[GANGS_GPUS] = {0}, seen = 0;
    for (struct lease_span *span = gangs->spans; span; span = span->next)
        span->wanted = wanted_lately(gangs, span, now);
    for (const struct lease_span *span = gangs->spans; span; span = span->next) {
        if (!is_gang(span->wanted) || span->wanted & seen || !is_contended(gangs, span))
            continue;
        uint64_t members = closure(gangs, span->wanted);
        wanted[__builtin_ctzll(members)] = members;
        seen |= members;
    }
    EACH_BIT(first, gangs->firsts)
    if (wanted[first] != gangs->groups[first].members)
        dissolve(gangs, first, now);
    EACH_BIT(first, seen)
    if (wanted[first] && !(gangs->firsts & bit(first)))
        form(gangs, wanted[first], now);
}

/* ---- turns ---- */

static int is_near(const struct lease_gpu *gpu)
{
    if (gpu->holder < 0)
        return 1;
    const struct lease_tenant *tenant = &gpu->tenants[gpu->holder];
    return tenant->near >= tenant->active;
}

/* Work that runs on because it waits for another GPU is charged, so its tenant might never be first in order. It gets a
 * turn, and time to finish, as often as its share allows. */
static int is_starved(const struct lease_gangs *gangs, const struct lease_span *span, double share, int64_t now)
{
    int late = 0;
    EACH_GPU(i, span) late |= (int)(gpu_of(gangs, span, i)->late >> span->entries[i] & 1);
    if (share < SHARE_LEAST)
        share = SHARE_LEAST;
    return late && (double)(now - span->turn_at) * share >= (double)(LEASE_QUANTUM + DEADLINE);
}

/* A tenant's place in the group's order. Its virtual time counts from the others' on each of its GPUs, which have
 * different histories. Returns whether it may have a turn. */
static int stands(const struct lease_gangs *gangs, const struct lease_span *span, uint64_t gpus,
                  struct lease_account *place, int64_t now)
{
    double behind = 0, of = 0;
    EACH_GPU(i, span)
    {
        if (!(gpus & bit(span->gpus[i])))
            continue;
        const struct lease_account *account = account_of(gangs, span, i);
        if (account->suspect)
            return 0;
        behind += account->virtual_time - gpu_of(gangs, span, i)->accounts.least_virtual_time;
        if (!of++ || account->tokens < place->tokens)
            *place = *account;
    }
    place->virtual_time = of ? behind / of : 0;
    if (is_gang(gpus) && is_starved(gangs, span, place->share, now))
        place->virtual_time = -(double)LEASE_NEVER;
    place->demand = 1;
    return of > 0;
}

/* The tenant of the group that should have the next turn, of those whose GPUs are all free; `retry` as in choose.h. */
static struct lease_span *next_of(const struct lease_gangs *gangs, uint64_t members, uint64_t free, int64_t now,
                                  int64_t *turn, int64_t *retry)
{
    struct lease_accounts order = {.count = 0};
    struct lease_span *candidates[LEASE_TENANTS];
    for (struct lease_span *span = gangs->spans; span && order.count < LEASE_TENANTS; span = span->next) {
        uint64_t gpus = span->wanted & members;
        if (demand(gangs, span) & gpus && !(gpus & ~free) && stands(gangs, span, gpus, &order.of[order.count], now))
            candidates[order.count++] = span;
    }
    int chosen = lease_choose(&order, now, -1, 0, retry);
    if (chosen < 0)
        return NULL;
    *turn = lease_quantum(&order.of[chosen]);
    return candidates[chosen];
}

static void begin(struct lease_gangs *gangs, struct lease_span *span, uint64_t gpus, int64_t until, int64_t now)
{
    span->holds = gpus;
    span->idle_at = 0;
    span->turn_at = now;
    EACH_GPU(i, span)
    {
        struct lease_gpu *gpu = gpu_of(gangs, span, i);
        if (!(gpus & bit(span->gpus[i])))
            continue;
        gpu->catches_up = 0;
        if (gpu->holder == span->entries[i])
            lease_gpu_prolong(gpu, until, now);
        else
            lease_gpu_begin(gpu, span->entries[i], until, now);
    }
}

/* Give out the free GPUs of a group: to the first in order, then to others that fit next to it until its turn ends. */
static void fill(struct lease_gangs *gangs, struct lease_group *group, uint64_t free, int64_t now)
{
    int64_t turn, retry = LEASE_NEVER;
    int fresh = free == group->members;
    struct lease_span *span;
    EACH_BIT(at, group->members) lease_gpu_settle(gangs->gpus[at], now);
    for (span = gangs->spans; span; span = span->next)
        span->holds &= ~free;
    while (free && (span = next_of(gangs, group->members, free, now, &turn, &retry))) {
        uint64_t gpus = span->wanted & group->members;
        if (fresh)
            group->until = now + turn;
        fresh = 0;
        begin(gangs, span, gpus, earliest(group->until, now + turn), now);
        free &= ~gpus;
    }
    group->retry_at = free ? retry : LEASE_NEVER;
    EACH_BIT(at, free)
    if (gangs->gpus[at]->holder >= 0)
        lease_gpu_begin(gangs->gpus[at], -1, now, now);
}

/* Take back the GPUs of tenants that have wanted none of theirs for a while. Returns the GPUs without a turn. */
static uint64_t collect(struct lease_gangs *gangs, const struct lease_group *group, int64_t now)
{
    uint64_t free = group->members;
    for (struct lease_span *span = gangs->spans; span; span = span->next) {
        uint64_t mine = span->holds & group->members, wants = demand(gangs, span);
        span->wanted |= wants & group->members;
        if (!mine)
            continue;
        if (wants & mine)
            span->idle_at = 0;
        else if (!span->idle_at)
            span->idle_at = now;
        if (span->idle_at && now - span->idle_at >= IDLE)
            span->holds &= ~mine;
        else
            free &= ~mine;
    }
    return free;
}

/* Work that waits for other GPUs of its tenant ends when these have launched their part, although the turn is over. */
static void catch_up(struct lease_gangs *gangs, struct lease_group *group, int64_t now)
{
    uint64_t behind = 0;
    EACH_BIT(at, group->members)
    {
        struct lease_gpu *gpu = gangs->gpus[at];
        if (is_near(gpu))
            gpu->catches_up = 0;
        else if (!gpu->catches_up)
            behind |= bit(at);
    }
    if (behind != group->behind)
        group->behind_at = now;
    group->behind = behind;
    int stalled = behind && now - group->behind_at >= STALLED;
    EACH_BIT(at, group->members)
    {
        struct lease_gpu *gpu = gangs->gpus[at];
        if (gpu->holder < 0 || behind & bit(at))
            continue;
        if (!behind && gpu->catches_up) { /* enough: the others have ended */
            gpu->catches_up = 0;
            lease_gpu_prolong(gpu, now, now);
        }
        if (!stalled || gpu->catches_up || !gpu->tenants[gpu->holder].active)
            continue;
        gpu->catches_up = 1;
        group->behind_at = now;
        lease_gpu_prolong(gpu, now + CATCH_UP, now);
    }
}

/* A tenant of a higher priority than one that has a turn, and in its way. */
static int is_preempted(const struct lease_gangs *gangs, const struct lease_group *group)
{
    for (const struct lease_span *span = gangs->spans; span; span = span->next) {
        if (span->holds & group->members || !(demand(gangs, span) & group->members))
            continue;
        EACH_GPU(i, span)
        {
            const struct lease_gpu *gpu = gpu_of(gangs, span, i);
            if (span->wanted & group->members & bit(span->gpus[i]) && gpu->holder >= 0
                && gpu->accounts.of[gpu->holder].priority < account_of(gangs, span, i)->priority)
                return 1;
        }
    }
    return 0;
}

static void end_turn(struct lease_gangs *gangs, struct lease_group *group, int64_t now)
{
    group->until = now;
    EACH_BIT(at, group->members)
    if (gangs->gpus[at]->holder >= 0 && gangs->gpus[at]->until > now)
        lease_gpu_prolong(gangs->gpus[at], now, now);
}

static int is_over(const struct lease_gangs *gangs, const struct lease_group *group, int64_t now)
{
    int all = 1;
    EACH_BIT(at, group->members) all &= is_near(gangs->gpus[at]);
    return now >= group->until - 2 * LEASE_OVERLAP_NS && all;
}

static void step(struct lease_gangs *gangs, struct lease_group *group, int64_t now)
{
    uint64_t free = collect(gangs, group, now);
    if (free == group->members || is_over(gangs, group, now)) {
        fill(gangs, group, group->members, now);
        group->behind = 0;
    } else if (now >= group->until + DEADLINE) {
        EACH_BIT(at, group->members)
        if (!is_near(gangs->gpus[at]))
            lease_gpu_suspect(gangs->gpus[at]);
        fill(gangs, group, group->members, now);
        group->behind = 0;
    } else if (now >= group->until) {
        catch_up(gangs, group, now);
    } else if (is_preempted(gangs, group)) {
        end_turn(gangs, group, now);
    } else if (free) {
        fill(gangs, group, free, now);
    }
    EACH_BIT(at, group->members) lease_gpu_show(gangs->gpus[at]);
}

void lease_gangs_step(struct lease_gangs *gangs, int64_t now)
{
    EACH_BIT(first, gangs->firsts) step(gangs, &gangs->groups[first], now);
}

static const struct lease_group *group_of(const struct lease_gangs *gangs, uint64_t holds)
{
    EACH_BIT(first, gangs->firsts)
    if (gangs->groups[first].members & holds)
        return &gangs->groups[first];
    return NULL;
}

int64_t lease_gangs_due(const struct lease_gangs *gangs, int64_t now)
{
    int64_t due = LEASE_NEVER;
    EACH_BIT(first, gangs->firsts)
    {
        const struct lease_group *group = &gangs->groups[first];
        due = earliest(due, group->retry_at);
        if (now >= group->until && group->behind)
            due = earliest(due, group->behind_at + STALLED);
    }
    for (const struct lease_span *span = gangs->spans; span; span = span->next) {
        const struct lease_group *group = group_of(gangs, span->holds);
        if (!group)
            continue;
        due = earliest(due, now < group->until ? group->until : group->until + DEADLINE);
        if (span->idle_at)
            due = earliest(due, span->idle_at + IDLE);
    }
    return due > now ? due : now + LEASE_MS; /* what is due now has been done */
}
