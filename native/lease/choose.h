/* Which tenant gets a GPU next: the accounts of one GPU's tenants and the decision over them.
 *
 * Pure: no clock, no I/O, no memory of its own. Times are nanoseconds of CLOCK_MONOTONIC, or of a virtual clock. Each
 * tenant has three balances, all in nanoseconds of GPU time:
 *   virtual time: its charged time divided by its weight. The least goes first, which divides time by weight.
 *   tokens: what its limit still allows. They grow with time at the rate of the limit.
 *   debt: the part of its share that it did not get. It keeps a tenant of low priority from starving.
 */
#ifndef MILLIGPU_LEASE_CHOOSE_H
#define MILLIGPU_LEASE_CHOOSE_H

#include <stdint.h>

/* One GPU is never shared by more tenants than this: at 1000 / 64 milli-GPU, each gets 16 ms of a second. */
#define LEASE_TENANTS 64
#define LEASE_NEVER INT64_MAX

#define LEASE_US INT64_C(1000)
#define LEASE_MS INT64_C(1000000)

/* The length of one turn while others wait. 2 to 50 ms give the same shares; longer turns hand over less often. The
 * number is odd because GPUs divide time into slices of 2 ms: if a turn ends with a slice, the rest of its work waits
 * for a slice of the next tenant. */
#define LEASE_QUANTUM (35 * LEASE_MS)
/* A turn under a limit is shorter if few tokens are left; below this, hand-overs would cost more than they gain. */
#define LEASE_QUANTUM_LEAST (1 * LEASE_MS)

struct lease_account {
    /* Configuration. */
    double weight; /* divides the charged time into virtual time */
    double share;  /* the fraction of the GPU that is guaranteed */
    double limit;  /* the fraction that it may not exceed; 1 means no limit */
    int32_t priority;
    /* State. */
    uint32_t used;     /* this entry is a tenant */
    uint32_t demand;   /* it wants the GPU, or has work on it */
    uint32_t suspect;  /* it held a lease past its deadline and has sent nothing since */
    uint32_t admitted; /* its virtual time is up to date with the others' */
    double virtual_time;
    double tokens;
    double debt;
    int64_t touched;   /* the time up to which tokens and debt are counted */
    int64_t active_at; /* when it last wanted or used the GPU */
    /* For statistics. */
    int64_t charged;
    int64_t waited;
    int64_t throttled; /* the part of `waited` that is due to its own limit */
};

struct lease_accounts {
    int32_t count;             /* entries from here on are unused */
    double least_virtual_time; /* among active tenants; a tenant that wakes up starts here */
    struct lease_account of[LEASE_TENANTS];
};

/* Set a tenant's new or changed configuration; its balances stay. */
void lease_configure(struct lease_account *account, int policy, unsigned milli, unsigned limit, unsigned priority,
                     int64_t now);

/* Let time pass for one account: tokens grow, and debt grows while the tenant wants or holds the GPU. */
void lease_touch(struct lease_account *account, int64_t now, int holding);

/* The tenant wants the GPU. It gets no credit for a long sleep, and a little for a short one. */
void lease_admit(struct lease_accounts *accounts, int who, int64_t now);

void lease_charge(struct lease_accounts *accounts, int who, int64_t amount, int64_t now, int holding);

/* Take back time that was charged to the tenant and turned out to be another's. */
void lease_refund(struct lease_account *account, int64_t amount);

/* The tenant that should have the GPU, or -1 if none may. Only with -1, `retry` is the time when tokens will suffice,
 * or LEASE_NEVER. `holder` (or -1) is considered as if `pending` nanoseconds had already been charged to it. */
int lease_choose(const struct lease_accounts *accounts, int64_t now, int holder, int64_t pending, int64_t *retry);

/* The length of this tenant's turn. */
int64_t lease_quantum(const struct lease_account *account);

#endif
