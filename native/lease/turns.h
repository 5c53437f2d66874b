/* The turns of one GPU: which tenant holds it, whose work runs on, and what happens at each event.
 *
 * Deterministic: time is an argument of each call, and the only outputs are the lease words of the tenants' pages and a
 * set of tenants to wake. The arbiter's loop uses the real clock, the tests a virtual one.
 */
#ifndef MILLIGPU_LEASE_TURNS_H
#define MILLIGPU_LEASE_TURNS_H

#include "choose.h"
#include "protocol.h"

/* The last report of one process of a tenant about this GPU. */
struct lease_process {
    uint32_t present, active;
    uint64_t near, drained; /* the generation of that report */
};

/* A tenant's counts over its processes. */
struct lease_tenant {
    struct mg_gpu_limits *words;
    uint32_t present, active;
    uint32_t near, drained; /* of the active processes, in the present generation */
    int64_t ends;           /* when the last of their work will end, as announced with NEAR */
    int64_t left_at;        /* when the work of its last turn was to end; 0: settled */
    int64_t spoke_at;
    int64_t wanted_at; /* when it last wanted the GPU or had work on it */
    /* Between synchronous calls: how long it usually works before a gap, and how long it waits after lending one. */
    int64_t burst, lent;
    int64_t lent_at; /* when it lent its gap, or 0 */
};

struct lease_gpu {
    struct lease_accounts accounts;
    struct lease_tenant tenants[LEASE_TENANTS];
    int holder;          /* the tenant whose turn it is, or -1 */
    int left;            /* the tenant whose turn was before, or -1 */
    int lender;          /* the tenant that lent its turn for the gap between two calls, or -1 */
    int together;        /* gangs.c decides about turns here, because tenants have work across this GPU and others */
    int catches_up;      /* the holder's lease is over; it may finish what its work on other GPUs waits for */
    int parked;          /* no tenant wants the GPU; the last holder may use it at once and is charged from then on */
    uint64_t late;       /* tenants whose work runs on after their turn, with an unknown end */
    int64_t turn_at;     /* when the holder's turn began; 0: it had a gap since */
    int64_t until;       /* the end of the holder's lease */
    int64_t charge_from; /* the time up to which GPU time is charged */
    int64_t decide_at, silent_at, retry_at; /* timers, or LEASE_NEVER */
    uint64_t wake;                          /* tenants whose words changed; the caller wakes them and clears this */
    uint64_t turns;                         /* for statistics */
};

void lease_gpu_init(struct lease_gpu *gpu);

/* Add a tenant with the words of its page; -1 if there are too many. Configure it next. */
int lease_gpu_add(struct lease_gpu *gpu, struct mg_gpu_limits *words);
void lease_gpu_configure(struct lease_gpu *gpu, int who, int policy, unsigned milli, unsigned limit, unsigned priority,
                         int64_t now);
void lease_gpu_remove(struct lease_gpu *gpu, int who, int64_t now);

/* A process connected, reported, or disconnected. `process` is the caller's storage for it, zero at first. */
void lease_gpu_join(struct lease_gpu *gpu, int who, struct lease_process *process);
void lease_gpu_say(struct lease_gpu *gpu, int who, struct lease_process *process, const struct lease_message *message,
                   int64_t now);
void lease_gpu_leave(struct lease_gpu *gpu, int who, struct lease_process *process, int64_t now);

/* Bring all accounts up to date before they are read. */
void lease_gpu_settle(struct lease_gpu *gpu, int64_t now);

/* When the next timer is due, or LEASE_NEVER; and run the timers that are due. */
int64_t lease_gpu_due(const struct lease_gpu *gpu);
void lease_gpu_timer(struct lease_gpu *gpu, int64_t now);

/* ---- for gangs.c: turns on a GPU that is leased together with others ---- */

/* End the present turn and start the next one (-1: none), up to `until`. */
void lease_gpu_begin(struct lease_gpu *gpu, int next, int64_t until, int64_t now);
/* Give the holder more or less time. */
void lease_gpu_prolong(struct lease_gpu *gpu, int64_t until, int64_t now);
/* The holder kept the GPU past its deadline. */
void lease_gpu_suspect(struct lease_gpu *gpu);
/* Lease this GPU together with others, or on its own again. */
void lease_gpu_together(struct lease_gpu *gpu, int together, int64_t now);
void lease_gpu_show(struct lease_gpu *gpu);

#endif
