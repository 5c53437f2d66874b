/* The turns of one GPU: who holds it, whose work runs on, and what happens at which event.
 *
 * Deterministic: time arrives with each call, and all that leaves are the lease words of the tenants' pages and a set
 * of tenants to wake. The arbiter's loop drives it with the real clock, the tests with a virtual one.
 */
#ifndef MILLIGPU_LEASE_TURNS_H
#define MILLIGPU_LEASE_TURNS_H

#include "choose.h"
#include "protocol.h"

/* What one process of a tenant last said about this GPU. */
struct lease_member {
    uint32_t present, active;
    uint64_t near, drained; /* the generation in which it said so */
};

/* A tenant as its turns see it: counts over its processes. */
struct lease_tenant {
    struct mg_gpu_limits *words;
    uint32_t present, active;
    uint32_t near, drained; /* of the active ones, in the present generation */
    int64_t ends;           /* when the last of their work will end, as they said when they were near */
    int64_t left_at;        /* when the work of its last turn was to end; 0: that is settled */
    int64_t spoke_at;
    /* Between synchronous calls: how long it usually works before a gap, and what it then waits when it lends it. */
    int64_t burst, lent;
    int64_t lent_at; /* or 0 */
};

struct lease_gpu {
    struct lease_accounts accounts;
    struct lease_tenant tenants[LEASE_TENANTS];
    int holder;   /* whose turn it is, or -1 */
    int left;     /* whose turn was before, or -1 */
    int lender;   /* who gave its turn away for the gap between two calls, or -1 */
    int parked;   /* nobody wants the GPU; the last holder may use it at once, and pays from then on */
    uint64_t late;       /* tenants whose work runs on after their turn, nobody knows how long */
    int64_t turn_at;     /* when the holder's turn began; 0: it had a gap since */
    int64_t until;       /* the end of the holder's lease */
    int64_t charge_from; /* up to when GPU time is charged */
    int64_t decide_at, silent_at, retry_at; /* timers, or LEASE_NEVER */
    uint64_t wake;  /* tenants whose words changed; the caller wakes them and clears it */
    uint64_t turns; /* counted for statistics */
};

void lease_gpu_init(struct lease_gpu *gpu);

/* A tenant comes, with the words of its page; -1 when there are too many. Configure it next. */
int lease_gpu_add(struct lease_gpu *gpu, struct mg_gpu_limits *words);
void lease_gpu_configure(struct lease_gpu *gpu, int who, int policy, unsigned milli, unsigned limit,
                         unsigned priority, int64_t now);
void lease_gpu_remove(struct lease_gpu *gpu, int who, int64_t now);

/* A process came, said something, or went; `member` is the caller's memory of it, zero at first. */
void lease_gpu_join(struct lease_gpu *gpu, int who, struct lease_member *member);
void lease_gpu_say(struct lease_gpu *gpu, int who, struct lease_member *member, const struct lease_message *message,
                   int64_t now);
void lease_gpu_leave(struct lease_gpu *gpu, int who, struct lease_member *member, int64_t now);

/* Brings all accounts up to now, for whoever wants to read them. */
void lease_gpu_settle(struct lease_gpu *gpu, int64_t now);

/* When the next timer is due, or LEASE_NEVER; and doing what is due. */
int64_t lease_gpu_due(const struct lease_gpu *gpu);
void lease_gpu_timer(struct lease_gpu *gpu, int64_t now);

#endif
