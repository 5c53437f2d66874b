/* The arbiter of a machine's GPUs: one thread that reads the tenants' messages and hands the leases around.
 *
 * A tenant is a directory with a limits page. The arbiter reads the tenant's configuration from the page, again
 * whenever it changes, and writes the tenant's leases there. The functions below may be called from any thread.
 */
#ifndef MILLIGPU_LEASE_ARBITER_H
#define MILLIGPU_LEASE_ARBITER_H

#include <stdint.h>

#include "milligpu/pages.h"

struct arbiter;

/* What one tenant has used of one GPU, in nanoseconds since it was added; mirrors tenancy/arbiter.py. */
struct arbiter_account {
    int64_t charged;   /* GPU time it held, including work after its lease */
    int64_t waited;    /* time it wanted the GPU and did not have it */
    int64_t throttled; /* the part of `waited` that is due to its own limit */
    uint32_t wanting;  /* processes that want the GPU or use it */
    uint32_t holding;  /* it has the lease */
    uint32_t suspect;  /* it kept the GPU past its deadline and has sent nothing since */
    uint32_t reserved;
};

struct arbiter_totals {
    int64_t cpu_ns; /* CPU time of the arbiter's thread */
    uint64_t turns, messages;
};

/* Null with errno set if no thread or descriptor can be created. */
struct arbiter *arbiter_start(void);
/* Ends the thread. The leases it gave stay in the pages until the heartbeat is old, as if it had been killed. */
void arbiter_stop(struct arbiter *arbiter);

/* Returns a number for the tenant, or a negative errno value: EINVAL for a bad page, ENOSPC for too many tenants or
 * GPUs. */
int arbiter_add(struct arbiter *arbiter, const char *folder);
/* Ends the tenant's leases and closes its connections. Returns 0, or -ENOENT. */
int arbiter_remove(struct arbiter *arbiter, int tenant);
/* Reads the accounts of the tenant's GPUs, in the page's order. Returns their number, or -ENOENT. */
int arbiter_read(struct arbiter *arbiter, int tenant, struct arbiter_account accounts[MG_PAGE_GPUS]);
void arbiter_read_totals(struct arbiter *arbiter, struct arbiter_totals *totals);

#endif
