/* What a tenant's process and the arbiter say to each other, and the times both know.
 *
 * From the process: one kind of message, its whole present state on one GPU, over a SOCK_SEQPACKET socket in the
 * tenant's folder. Who connects there is that tenant, whatever it says; closing the socket is dying. Repeating a
 * message or losing the arbiter therefore does no harm: after a reconnect the state is simply said again.
 * From the arbiter: the lease words of the tenant's limits page, and a futex wake on the low half of the generation.
 */
#ifndef MILLIGPU_LEASE_PROTOCOL_H
#define MILLIGPU_LEASE_PROTOCOL_H

#include <stdint.h>

#include "milligpu/pages.h"

enum lease_state {
    LEASE_ACTIVE = 1,  /* wants to launch, or has work on the GPU; after its lease and without NEAR: which runs on */
    LEASE_NEAR = 2,    /* what is left on the GPU ends within LEASE_OVERLAP, at `stamp` */
    LEASE_DRAINED = 4, /* nothing is left on the GPU; after NEAR said only if that was wrong */
    LEASE_SOON = 8,    /* between two synchronous calls, now or (active, near) in a moment: others may use the gap */
};

struct lease_message {
    uint8_t gpu; /* index in the limits page */
    uint8_t state;
    uint16_t reserved;
    uint32_t generation; /* low half of the lease generation that this is about */
    int64_t stamp;       /* when it became so, or will have */
};

/* Flags that the arbiter keeps beside the lease words (mg_gpu_limits.lease_flags). */
enum lease_flags {
    LEASE_BESIDE_HIGHER = 1, /* a higher priority is present, or the lease is borrowed: one piece of work at a time */
    LEASE_CONTENDED = 2,     /* others wait */
};

#define LEASE_FRAME_NS (INT64_C(1000) * MG_FRAME_US)
/* The arbiter shows a sign of life this often, and a tenant falls back to its slot of the frame after that long. */
#define LEASE_HEARTBEAT_NS (INT64_C(50) * 1000000)
#define LEASE_HEARTBEAT_OLD_NS (INT64_C(200) * 1000000)
/* The successor may launch this long before its predecessor's work ends: about what waking it up takes. */
#define LEASE_OVERLAP_NS (INT64_C(200) * 1000)
/* An end that was foretold to within this much is not told again. */
#define LEASE_FORETOLD_NS (INT64_C(100) * 1000)

/* Whoever has work that runs on says so this long after its lease, long before the arbiter takes the GPU away; says so
 * again each time this long has passed, and is believed for twice that. */
#define LEASE_RUNS_ON_NS (INT64_C(50) * 1000000)
#define LEASE_RUNNING_ON_NS (INT64_C(250) * 1000000)

_Static_assert(sizeof(struct lease_message) == 16, "one format on both sides");

#endif
