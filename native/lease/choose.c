#include "choose.h"
#include "milligpu/pages.h"

/* A tenant that was idle no longer than this was only between two pieces of work. */
#define SHORT_SLEEP (50 * LEASE_MS)
/* Such a tenant keeps this much of what it did not use, so the pauses of a training step do not cost it its share. */
#define SLEEP_CREDIT (25 * LEASE_MS)
/* A limit holds over a fifth of a second, about as long as the turns of the others: with less, a tenant that waits for
 * them would lose tokens. */
#define TOKENS_SPAN (200 * LEASE_MS)
/* A tenant that ran out of tokens waits until it has tokens for this much time, because every start costs a
 * hand-over. */
#define TOKENS_START (50 * LEASE_MS)
/* From this debt on, a tenant's share takes precedence over priority. The debt is bounded in both directions. */
#define DEBT_HONORED (50 * LEASE_MS)
#define DEBT_MOST (200 * LEASE_MS)
#define DEBT_LEAST (-100 * LEASE_MS)
/* A tenant without a guaranteed share still makes progress next to others. */
#define WEIGHT_LEAST 0.01

static double least(double a, double b)
{
    return a < b ? a : b;
}
static double most(double a, double b)
{
    return a > b ? a : b;
}

void lease_configure(struct lease_account *account, int policy, unsigned milli, unsigned limit, unsigned priority,
                     int64_t now)
{
    account->share = milli / 1000.0;
    account->limit = limit / 1000.0;
    account->weight = policy == MG_POLICY_EQUAL ? 1.0 : most(account->share, WEIGHT_LEAST);
    account->priority = (int32_t)priority;
    if (!account->used) {
        account->used = 1;
        account->tokens = TOKENS_START * account->limit;
        account->touched = now;
        account->active_at = INT64_MIN / 2;
    }
    account->tokens = least(account->tokens, TOKENS_SPAN * account->limit);
}

void lease_touch(struct lease_account *account, int64_t now, int holding)
{
    double passed = (double)(now - account->touched);
    if (passed <= 0)
        return;
    account->touched = now;
    int throttled = account->limit < 1 && account->tokens <= 0;
    account->tokens = least(TOKENS_SPAN * account->limit, account->tokens + passed * account->limit);
    if (!account->demand && !holding)
        return;
    account->debt = least(DEBT_MOST, account->debt + passed * account->share);
    if (holding)
        return;
    account->waited += (int64_t)passed;
    if (throttled)
        account->throttled += (int64_t)passed;
}

void lease_admit(struct lease_accounts *accounts, int who, int64_t now)
{
    struct lease_account *account = &accounts->of[who];
    if (!account->admitted) {
        double start = accounts->least_virtual_time;
        if (now - account->active_at <= SHORT_SLEEP)
            start -= SLEEP_CREDIT / account->weight;
        account->virtual_time = most(account->virtual_time, start);
        account->admitted = 1;
    }
    account->active_at = now;
}

static void raise_least_virtual_time(struct lease_accounts *accounts)
{
    double lowest = -1;
    for (int i = 0; i < accounts->count; i++) {
        const struct lease_account *account = &accounts->of[i];
        if (!account->used || !account->admitted)
            continue;
        if (lowest < 0 || account->virtual_time < lowest)
            lowest = account->virtual_time;
    }
    accounts->least_virtual_time = most(accounts->least_virtual_time, lowest);
}

void lease_charge(struct lease_accounts *accounts, int who, int64_t amount, int64_t now, int holding)
{
    struct lease_account *account = &accounts->of[who];
    if (amount <= 0)
        return;
    lease_touch(account, now, holding);
    account->virtual_time += (double)amount / account->weight;
    account->tokens -= (double)amount;
    account->debt = most(DEBT_LEAST, account->debt - (double)amount);
    account->charged += amount;
    account->active_at = now;
    raise_least_virtual_time(accounts);
}

void lease_refund(struct lease_account *account, int64_t amount)
{
    if (amount <= 0)
        return;
    account->virtual_time -= (double)amount / account->weight;
    account->tokens = least(TOKENS_SPAN * account->limit, account->tokens + (double)amount);
    account->debt = least(DEBT_MOST, account->debt + (double)amount);
    account->charged -= amount;
}

static int has_tokens(const struct lease_account *account, double pending, int64_t now, int64_t *retry)
{
    if (account->limit >= 1)
        return 1;
    double tokens = account->tokens - pending * (1 - account->limit);
    if (tokens > 0)
        return 1;
    int64_t when = now + TOKENS_START - (int64_t)(tokens / account->limit);
    if (when < *retry)
        *retry = when;
    return 0;
}

int lease_choose(const struct lease_accounts *accounts, int64_t now, int holder, int64_t pending, int64_t *retry)
{
    uint64_t eligible = 0;
    int32_t highest = INT32_MIN;
    *retry = LEASE_NEVER;
    for (int i = 0; i < accounts->count; i++) {
        const struct lease_account *account = &accounts->of[i];
        if (!account->used || !account->demand || account->suspect)
            continue;
        if (!has_tokens(account, i == holder ? (double)pending : 0, now, retry))
            continue;
        eligible |= UINT64_C(1) << i;
        if (account->priority > highest)
            highest = account->priority;
    }
    int owed = -1, next = -1;
    double next_time = 0;
    for (int i = 0; i < accounts->count; i++) {
        const struct lease_account *account = &accounts->of[i];
        if (!(eligible >> i & 1))
            continue;
        double time = account->virtual_time;
        double debt = account->debt;
        if (i == holder)
            time += (double)pending / account->weight, debt -= (double)pending;
        if (account->priority < highest) {
            if (debt > DEBT_HONORED && (owed < 0 || debt > accounts->of[owed].debt))
                owed = i;
        } else if (next < 0 || time < next_time) {
            next = i;
            next_time = time;
        }
    }
    return owed >= 0 ? owed : next;
}

int64_t lease_quantum(const struct lease_account *account)
{
    if (account->limit >= 1)
        return LEASE_QUANTUM;
    double turn = account->tokens / (1 - account->limit);
    return (int64_t)most(LEASE_QUANTUM_LEAST, least(LEASE_QUANTUM, turn));
}
