/* Who gets a GPU next: the accounts of one GPU's tenants and the decision over them.
 *
 * Pure: no clock, no I/O, no memory of its own. Times are nanoseconds of CLOCK_MONOTONIC, or of a virtual clock.
 * Three accounts per tenant, all in nanoseconds of GPU time:
 *   virtual time  what it was charged, divided by its weight: the least goes first, so that shares come out even
 *   tokens        what its limit still allows: they grow with time at the rate of the limit
 *   debt          what its request was promised and it did not get: keeps a low priority from starving
 */
#ifndef MILLIGPU_LEASE_CHOOSE_H
#define MILLIGPU_LEASE_CHOOSE_H

#include <stdint.h>

/* More tenants than this do not share one card: at 1000 / 64 milligpu each gets 16 ms of a second. */
#define LEASE_TENANTS 64
#define LEASE_NEVER INT64_MAX

#define LEASE_US INT64_C(1000)
#define LEASE_MS INT64_C(1000000)

/* How long one turn lasts when others wait. 2 to 50 ms give the same shares; longer ones hand over less often. An odd
 * number, because cards divide time in slices of 2 ms: when a turn ends as a slice does, the last of its work waits for
 * a slice of the next tenant's. */
#define LEASE_QUANTUM (35 * LEASE_MS)
/* A turn under a limit is shorter when there are few tokens; below this, hand-overs would cost more than they give. */
#define LEASE_QUANTUM_LEAST (1 * LEASE_MS)

struct lease_account {
    /* Configuration. */
    double weight;  /* of its virtual time */
    double request; /* the fraction of the GPU that is guaranteed */
    double limit;   /* the fraction that it may not exceed; 1 is no limit */
    int32_t priority;
    /* State. */
    uint32_t used;     /* this entry is a tenant */
    uint32_t demand;   /* it wants the GPU, or has work on it */
    uint32_t suspect;  /* it held a lease past its deadline and has not spoken since */
    uint32_t admitted; /* its virtual time is up to date with the others' */
    double virtual_time;
    double tokens;
    double debt;
    int64_t touched;   /* up to when tokens and debt are counted */
    int64_t active_at; /* when it last wanted or used the GPU */
    /* For statistics. */
    int64_t charged;
    int64_t waited;
    int64_t throttled; /* of that: because of its own limit */
};

struct lease_accounts {
    int32_t count; /* no entry from here on is a tenant */
    double floor;  /* the least virtual time among the active: where those who wake up start */
    struct lease_account of[LEASE_TENANTS];
};

/* A tenant's new or changed configuration; its balances stay. */
void lease_configure(struct lease_account *account, int policy, unsigned milli, unsigned limit, unsigned priority,
                     int64_t now);

/* Time passes for one account: tokens and, while it wants or holds the GPU, debt. `waiting`: it wants, and has not. */
void lease_touch(struct lease_account *account, int64_t now, int holding);

/* It wants the GPU: no credit for a long sleep, a little for a short one. */
void lease_admit(struct lease_accounts *accounts, int who, int64_t now);

void lease_charge(struct lease_accounts *accounts, int who, int64_t amount, int64_t now, int holding);

/* Time that was charged to it and turned out to be another's. */
void lease_refund(struct lease_account *account, int64_t amount);

/* The tenant that should have the GPU, or -1: nobody may. `retry` is then (and only then) when tokens will suffice,
 * or LEASE_NEVER. `holder` (or -1) is looked at as if `pending` nanoseconds had been charged to it already. */
int lease_choose(const struct lease_accounts *accounts, int64_t now, int holder, int64_t pending, int64_t *retry);

/* How long a turn this tenant may have. */
int64_t lease_quantum(const struct lease_account *account);

#endif
