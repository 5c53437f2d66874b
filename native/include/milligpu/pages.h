/* The two memory pages between the agent and a tenant's processes; mirrors limits.py and usage.py in src/milligpu/wire.
 *
 * Limits page: written by the agent, read-only for the tenant. A sequence lock guards its configuration (`sequence` is
 * odd during a write). Heartbeat and lease words are single atomics that the arbiter writes independently. Usage page:
 * written by the tenant.
 */
#ifndef MILLIGPU_PAGES_H
#define MILLIGPU_PAGES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MG_LIMITS_MAGIC 0x314C474Du /* "MGL1" */
#define MG_USAGE_MAGIC 0x3155474Du  /* "MGU1" */
#define MG_PAGES_VERSION 1u
#define MG_LIMITS_SIZE 4096u
#define MG_PAGE_GPUS 16u
#define MG_UUID_SIZE 48u
#define MG_FRAME_US 100000u
#define MG_USAGE_SLOTS 512u
#define MG_USAGE_SLOTS_OFFSET 4096u

enum mg_policy { MG_POLICY_FIXED = 1, MG_POLICY_EQUAL = 2, MG_POLICY_BEST_EFFORT = 3 };

struct mg_gpu_limits {
    char uuid[MG_UUID_SIZE];
    uint32_t milli;
    uint32_t limit;
    uint64_t memory_limit;   /* bytes */
    uint64_t lease_until_ns; /* CLOCK_MONOTONIC; here a cache line of the arbiter starts */
    uint64_t lease_generation;
    uint32_t time_slot_start_us;
    uint32_t time_slot_length_us;
    uint32_t policy;
    uint32_t lease_flags;   /* written by the arbiter: lease/protocol.h */
    uint64_t context_bytes; /* what a context takes of this GPU before anything is allocated in it */
    uint32_t granule_bytes; /* the driver gives memory in multiples of this; 0: not known, 4096 */
    uint32_t reserved[5];
};

struct mg_limits_page {
    uint32_t magic;
    uint32_t version;
    uint32_t sequence;
    uint32_t gpu_count;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC */
    uint64_t generation;
    uint32_t priority;
    uint32_t reserved[7];
    struct mg_gpu_limits gpus[MG_PAGE_GPUS];
    uint8_t unused[MG_LIMITS_SIZE - 64 - MG_PAGE_GPUS * 128];
};

struct mg_account {
    uint64_t used;
    uint64_t peak;
    uint64_t refused;
    uint32_t unused0;
    uint32_t reserved[9];
};

struct mg_process_slot {
    uint32_t pid;
    uint32_t state;   /* 0: free */
    uint64_t started; /* clock ticks after boot */
    uint64_t used[MG_PAGE_GPUS];
};

struct mg_usage_page {
    uint32_t magic;
    uint32_t version;
    uint32_t slot_count;
    uint32_t gpu_count;
    uint32_t lock; /* for accounts and slots: 1 + the slot that holds it */
    uint32_t reserved[11];
    struct mg_account accounts[MG_PAGE_GPUS];
    uint8_t unused[MG_USAGE_SLOTS_OFFSET - 64 - MG_PAGE_GPUS * 64];
    struct mg_process_slot slots[MG_USAGE_SLOTS];
};

#ifdef __cplusplus
#define MG_ASSERT static_assert
#else
#define MG_ASSERT _Static_assert
#endif
MG_ASSERT(sizeof(struct mg_gpu_limits) == 128, "mirrors milligpu/wire");
MG_ASSERT(offsetof(struct mg_gpu_limits, lease_until_ns) == 64, "the arbiter's cache line");
MG_ASSERT(sizeof(struct mg_limits_page) == MG_LIMITS_SIZE, "mirrors milligpu/wire");
MG_ASSERT(offsetof(struct mg_limits_page, gpus) == 64, "mirrors milligpu/wire");
MG_ASSERT(sizeof(struct mg_account) == 64, "mirrors milligpu/wire");
MG_ASSERT(sizeof(struct mg_process_slot) == 144, "mirrors milligpu/wire");
MG_ASSERT(offsetof(struct mg_usage_page, slots) == MG_USAGE_SLOTS_OFFSET, "mirrors milligpu/wire");

/* Copy a consistent configuration out of a page while it may be written.
 * 0: done. -1: not a limits page of this version, or values out of range: the caller must refuse to run.
 * -2: the writer did not finish within a tenth of a second (it died in the middle): the caller must refuse, too. */
int mg_limits_read(const struct mg_limits_page *page, struct mg_limits_page *copy);

/* Replace the configuration of a page in place; readers see the old one or the new one. Lease words, heartbeat and
 * sequence of `page` stay. One writer at a time. -1: `next` is not a valid page; nothing is changed. */
int mg_limits_write(struct mg_limits_page *page, const struct mg_limits_page *next);

#ifdef __cplusplus
}
#endif
#endif
