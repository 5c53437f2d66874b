/* Messages between a tenant's process and the arbiter, and the times that both know.
 *
 * From the process: one kind of message with its whole state on one GPU, over a SOCK_SEQPACKET socket in the tenant's
 * directory. The directory identifies the tenant; the content of a message does not. A closed socket means that the
 * process has ended. Repeated messages do no harm, and after a reconnect the process sends its state again.
 * From the arbiter: the lease words of the tenant's limits page, and a futex wake on the low half of the generation.
 */
#ifndef MILLIGPU_LEASE_PROTOCOL_H
#define MILLIGPU_LEASE_PROTOCOL_H

#include <stdint.h>

#include "milligpu/pages.h"

enum lease_state {
    /* Wants to launch, or has work on the GPU; after its lease and without NEAR: work that runs on. */
    LEASE_ACTIVE = 1,
    LEASE_NEAR = 2,    /* the remaining work on the GPU ends within LEASE_OVERLAP_NS, at `stamp` */
    LEASE_DRAINED = 4, /* no work is left on the GPU; sent after NEAR only if NEAR was wrong */
    LEASE_SOON = 8,    /* between two synchronous calls, now or (active, near) in a moment: others may use the gap */
};

struct lease_message {
    uint8_t gpu; /* index in the limits page */
    uint8_t state;
    uint16_t reserved;
    uint32_t generation; /* low half of the lease generation that the message refers to */
    int64_t stamp;       /* when the state began, or will begin */
};

/* Flags that the arbiter sets in mg_gpu_limits.lease_flags. */
enum lease_flags {
    LEASE_BESIDE_HIGHER = 1, /* a higher priority is present, or the lease is borrowed: one piece of work at a time */
    LEASE_CONTENDED = 2,     /* others wait */
    LEASE_TOGETHER = 4,      /* the tenant's GPUs are leased together: gaps on one of them are not lent */
};

#define LEASE_FRAME_NS (INT64_C(1000) * MG_FRAME_US)
/* The arbiter's heartbeat interval, and the age at which a tenant falls back to its time slot. */
#define LEASE_HEARTBEAT_NS (INT64_C(50) * 1000000)
#define LEASE_HEARTBEAT_OLD_NS (INT64_C(200) * 1000000)
/* The successor may launch this long before its predecessor's work ends: about the time that waking it up takes. */
#define LEASE_OVERLAP_NS (INT64_C(200) * 1000)
/* If the predicted end was wrong by no more than this, the actual end is not reported. */
#define LEASE_PREDICTED_NS (INT64_C(100) * 1000)

/* A tenant whose work runs on reports it this long after its lease, well before the arbiter takes the GPU away. It
 * repeats the report at the second interval; the arbiter trusts a report for twice that. */
#define LEASE_RUNS_ON_NS (INT64_C(50) * 1000000)
#define LEASE_RUNNING_ON_NS (INT64_C(250) * 1000000)

_Static_assert(sizeof(struct lease_message) == 16, "one format on both sides");

#endif
