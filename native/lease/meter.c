#include "meter.h"

/* The time slice that a GPU gives to one context before it switches to the next. */
#define SLICE (2 * LEASE_MS)
/* A tenant whose work runs on repeats that message from time to time. After this long without one it is no longer
 * charged: a stopped process must not pay for the time until it continues. */
#define LATE_TRUST (2 * LEASE_RUNNING_ON_NS)

static int64_t latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static int64_t earliest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int meter_is_late(const struct lease_gpu *gpu, int who)
{
    return (int)(gpu->late >> who & 1);
}

/* How many processes of this tenant are known to have work on the GPU: each of them gets time slices. */
static uint32_t running(const struct lease_gpu *gpu, int who)
{
    const struct lease_tenant *tenant = &gpu->tenants[who];
    uint32_t count = who == gpu->holder ? tenant->active : tenant->active - tenant->near;
    return count ? count : 1;
}

/* Charge the time up to now; who is late does not change meanwhile. */
static void charge(struct lease_gpu *gpu, int64_t now)
{
    int64_t passed = now - gpu->charge_from;
    int holder = gpu->parked ? -1 : gpu->holder;
    uint32_t all = holder >= 0 ? running(gpu, holder) : 0;
    if (passed <= 0)
        return;
    gpu->charge_from = now;
    for (uint64_t late = gpu->late; late; late &= late - 1)
        all += running(gpu, __builtin_ctzll(late));
    for (uint64_t late = gpu->late; late; late &= late - 1) {
        int who = __builtin_ctzll(late);
        lease_charge(&gpu->accounts, who, passed * running(gpu, who) / all, now, 0);
    }
    if (holder >= 0)
        lease_charge(&gpu->accounts, holder, passed * running(gpu, holder) / all, now, 1);
}

/* The late tenant whose silence became too long first; -1: none. */
static int silent(const struct lease_gpu *gpu, int64_t now)
{
    int first = -1;
    for (uint64_t late = gpu->late; late; late &= late - 1) {
        int who = __builtin_ctzll(late);
        int64_t spoke_at = gpu->tenants[who].spoke_at;
        if (now - spoke_at > LATE_TRUST && (first < 0 || spoke_at < gpu->tenants[first].spoke_at))
            first = who;
    }
    return first;
}

void meter_silence(struct lease_gpu *gpu, int64_t now)
{
    for (int who; (who = silent(gpu, now)) >= 0;) {
        charge(gpu, gpu->tenants[who].spoke_at + LATE_TRUST);
        gpu->late &= ~(UINT64_C(1) << who);
    }
}

void meter_until(struct lease_gpu *gpu, int64_t now)
{
    meter_silence(gpu, now);
    charge(gpu, now);
}

int64_t meter_believed(const struct lease_gpu *gpu, int64_t stamp, int64_t now)
{
    return latest(gpu->charge_from, earliest(now, latest(stamp, now - METER_STAMP_REACH)));
}

void meter_late_end(struct lease_gpu *gpu, int who, int64_t stamp, int64_t now)
{
    struct lease_tenant *tenant = &gpu->tenants[who];
    meter_until(gpu, stamp > now ? now : meter_believed(gpu, stamp, now));
    gpu->late &= ~(UINT64_C(1) << who);
    tenant->left_at = tenant->drained < tenant->active ? latest(now, earliest(stamp, now + METER_STAMP_REACH)) : 0;
}

/* If the end is later by about a time slice, the last of the work waited for a slice of the successor. */
void meter_ended(struct lease_gpu *gpu, int who, int64_t stamp, int64_t now)
{
    struct lease_tenant *tenant = &gpu->tenants[who];
    int64_t said = tenant->left_at;
    int64_t end = earliest(now, latest(stamp, earliest(said, now) - METER_STAMP_REACH));
    if (end - said > SLICE / 2)
        end = latest(said, end - SLICE);
    int64_t more = end - said;
    lease_charge(&gpu->accounts, who, more, now, 0);
    lease_refund(&gpu->accounts.of[who], -more);
    tenant->left_at = 0; /* settled */
    if (gpu->left != who)
        return; /* the successor is gone, too */
    if (gpu->charge_from == said) {
        gpu->charge_from = end;
    } else if (more > 0 && gpu->holder >= 0) {
        lease_refund(&gpu->accounts.of[gpu->holder], earliest(end, gpu->charge_from) - said);
        gpu->charge_from = latest(gpu->charge_from, end);
    }
}

void meter_running_on(struct lease_gpu *gpu, int who, int64_t now)
{
    if (gpu->tenants[who].left_at)
        meter_ended(gpu, who, now, now);
    meter_until(gpu, now);
    gpu->late |= UINT64_C(1) << who;
}
