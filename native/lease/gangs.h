/* GPUs that are leased together.
 *
 * A tenant whose work spans several GPUs (collectives) is a gang: on one of its GPUs it waits for the others. If other
 * tenants share these GPUs, their leases must not go around independently. So the GPUs are put into a group, which has
 * one turn at a time: a gang gets all of its GPUs or none, and its turn ends when its work is near its end on all of
 * them. Tenants that need other GPUs of the group have turns at the same time.
 *
 * Deterministic like turns.h, which it builds on.
 */
#ifndef MILLIGPU_LEASE_GANGS_H
#define MILLIGPU_LEASE_GANGS_H

#include "turns.h"

enum { GANGS_GPUS = 64 };

/* The GPUs of one tenant, by their number in `lease_gangs.gpus`, and its entry on each; -1 where it has none. */
struct lease_span {
    int32_t gpus[MG_PAGE_GPUS];
    int32_t entries[MG_PAGE_GPUS];
    uint64_t wanted; /* the GPUs that it wanted lately, as bits */
    uint64_t holds;  /* the GPUs of its turn */
    int64_t turn_at; /* when its last turn began */
    int64_t idle_at; /* since when it has wanted none of them in its turn; 0: it wants some */
    struct lease_span *next;
};

/* State of a group, at the place of its first GPU. */
struct lease_group {
    uint64_t members;
    uint64_t behind;   /* GPUs whose holder is not near its end although its turn is over */
    int64_t behind_at; /* when that last changed */
    int64_t until;     /* the end of the turn */
    int64_t retry_at;  /* when a limit allows the next turn, or LEASE_NEVER */
};

struct lease_gangs {
    struct lease_gpu *gpus[GANGS_GPUS];
    struct lease_span *spans;
    uint64_t grouped; /* GPUs in a group */
    uint64_t firsts;  /* the first GPU of each group */
    struct lease_group groups[GANGS_GPUS];
};

/* Add or remove a tenant. Its arrays may change while it is there; a GPU that it loses is removed from its turn. */
void lease_gangs_add(struct lease_gangs *gangs, struct lease_span *span);
void lease_gangs_remove(struct lease_gangs *gangs, struct lease_span *span);

/* Find out which tenants are gangs and which GPUs they share with others. Call it with each heartbeat. */
void lease_gangs_group(struct lease_gangs *gangs, int64_t now);

/* Call after every message and timer: turns in groups begin and end here. */
void lease_gangs_step(struct lease_gangs *gangs, int64_t now);

/* When to call `lease_gangs_step` again without a message, or LEASE_NEVER. */
int64_t lease_gangs_due(const struct lease_gangs *gangs, int64_t now);

#endif
