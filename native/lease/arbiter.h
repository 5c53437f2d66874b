/* The arbiter of a machine's GPUs: one thread that listens to the tenants and hands the leases around.
 *
 * A tenant is a folder with a limits page; the page is its configuration, read again when it changes, and where its
 * leases are written. The calls below may come from any thread.
 */
#ifndef MILLIGPU_LEASE_ARBITER_H
#define MILLIGPU_LEASE_ARBITER_H

#include <stdint.h>

#include "milligpu/pages.h"

struct arbiter;

/* What one tenant has of one GPU, in nanoseconds since it was added; mirrors agent/arbiter.py. */
struct arbiter_account {
    int64_t charged;   /* GPU time it held, its work of after the lease included */
    int64_t waited;    /* time it wanted the GPU and did not have it */
    int64_t throttled; /* of that: because of its own limit */
    uint32_t wanting;  /* processes that want the GPU or use it */
    uint32_t holding;  /* it has the lease */
    uint32_t suspect;  /* it kept the GPU past its deadline and has not spoken since */
    uint32_t reserved;
};

struct arbiter_totals {
    int64_t cpu_ns; /* of the arbiter's thread */
    uint64_t turns, messages;
};

/* Null with errno set when the machine refuses a thread or a descriptor. */
struct arbiter *arbiter_start(void);
/* Ends the thread; the leases it gave stay in the pages until the heartbeat is old, as if it had been killed. */
void arbiter_stop(struct arbiter *arbiter);

/* A number for the tenant, or a negative errno value: EINVAL for a bad page, ENOSPC for one too many. */
int arbiter_add(struct arbiter *arbiter, const char *folder);
/* Its leases end, its connections are closed. 0, or -ENOENT. */
int arbiter_remove(struct arbiter *arbiter, int tenant);
/* The accounts of its GPUs, in the page's order: how many, or -ENOENT. */
int arbiter_read(struct arbiter *arbiter, int tenant, struct arbiter_account accounts[MG_PAGE_GPUS]);
void arbiter_read_totals(struct arbiter *arbiter, struct arbiter_totals *totals);

#endif
