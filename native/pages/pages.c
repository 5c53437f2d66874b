#include "milligpu/pages.h"

#include <string.h>
#include <time.h>

/* A writer holds the page for well under a microsecond, unless it is descheduled in the middle; then spinning would not
 * help it. A writer that is not done after a tenth of a second is dead. */
#define READ_SPINS 1000
#define READ_NAPS 1000
#define NAP_NS 100000

static int valid(const struct mg_limits_page *page)
{
    if (page->magic != MG_LIMITS_MAGIC || page->version != MG_PAGES_VERSION)
        return 0;
    if (page->gpu_count > MG_PAGE_GPUS)
        return 0;
    for (uint32_t i = 0; i < page->gpu_count; i++) {
        const struct mg_gpu_limits *gpu = &page->gpus[i];
        if (gpu->uuid[0] == '\0' || memchr(gpu->uuid, '\0', MG_UUID_SIZE) == NULL)
            return 0;
        if (gpu->milli > gpu->limit || gpu->limit == 0 || gpu->limit > 1000)
            return 0;
        if (gpu->memory_limit == 0)
            return 0;
        if (gpu->policy < MG_POLICY_FIXED || gpu->policy > MG_POLICY_BEST_EFFORT)
            return 0;
        if ((uint64_t)gpu->time_slot_start_us + gpu->time_slot_length_us > MG_FRAME_US)
            return 0;
    }
    return 1;
}

/* Copy word by word and volatile: the compiler must neither merge nor repeat reads of memory that changes
 * concurrently. */
static void copy_words(volatile uint64_t *to, const volatile uint64_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] = from[i];
}

int mg_limits_read(const struct mg_limits_page *page, struct mg_limits_page *copy)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (int attempt = 0; attempt < READ_SPINS + READ_NAPS; attempt++) {
        if (attempt >= READ_SPINS)
            nanosleep(&nap, NULL);
        uint32_t before = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
        if (before % 2 == 0) {
            copy_words((volatile uint64_t *)copy, (const volatile uint64_t *)page, sizeof *page);
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) == before)
                return valid(copy) ? 0 : -1;
        }
    }
    return -2;
}

int mg_limits_write(struct mg_limits_page *page, const struct mg_limits_page *next)
{
    if (!valid(next))
        return -1;
    uint32_t sequence = __atomic_load_n(&page->sequence, __ATOMIC_RELAXED) & ~1u;
    __atomic_store_n(&page->sequence, sequence + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    page->magic = next->magic;
    page->version = next->version;
    page->gpu_count = next->gpu_count;
    page->generation = next->generation;
    page->priority = next->priority;
    for (uint32_t i = 0; i < MG_PAGE_GPUS; i++) {
        struct mg_gpu_limits *to = &page->gpus[i];
        const struct mg_gpu_limits *from = &next->gpus[i];
        copy_words((volatile uint64_t *)to, (const volatile uint64_t *)from,
                   offsetof(struct mg_gpu_limits, lease_until_ns));
        to->time_slot_start_us = from->time_slot_start_us;
        to->time_slot_length_us = from->time_slot_length_us;
        to->policy = from->policy;
        to->context_bytes = from->context_bytes;
        to->granule_bytes = from->granule_bytes;
    }
    __atomic_store_n(&page->sequence, sequence + 2, __ATOMIC_RELEASE);
    return 0;
}
