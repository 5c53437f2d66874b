/* Allocations: pages of this process, charged to the GPU by the daemon. The table contains every address that the
 * device may access, so copies to any other address are refused. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *table; /* sorted by address */
static size_t used, room;

/* The first allocation that begins after `address`. Under the lock. */
static size_t behind(uintptr_t address)
{
    size_t low = 0, high = used;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(struct allocation allocation)
{
    if (used == room) {
        size_t wanted = room ? room * 2 : 64;
        struct allocation *larger = realloc(table, wanted * sizeof *table);
        if (!larger)
            return false;
        table = larger;
        room = wanted;
    }
    size_t at = behind(allocation.start);
    memmove(table + at + 1, table + at, (used - at) * sizeof *table);
    table[at] = allocation;
    used++;
    return true;
}

static bool take(uintptr_t start, struct allocation *found)
{
    size_t at = behind(start);
    if (!at || table[at - 1].start != start)
        return false;
    *found = table[at - 1];
    memmove(table + at - 1, table + at, (used - at) * sizeof *table);
    used--;
    return true;
}

bool memory_find(uintptr_t address, struct allocation *found)
{
    pthread_mutex_lock(&lock);
    size_t at = behind(address);
    bool good = at && address - table[at - 1].start < table[at - 1].size;
    if (good)
        *found = table[at - 1];
    pthread_mutex_unlock(&lock);
    return good;
}

bool memory_on_host(const struct allocation *allocation)
{
    return allocation->kind == MEMORY_HOST || allocation->kind == MEMORY_REGISTERED;
}

bool memory_overlaps(uintptr_t start, size_t size)
{
    pthread_mutex_lock(&lock);
    size_t at = behind(start + size - 1);
    bool found = at && start < table[at - 1].start + table[at - 1].size;
    pthread_mutex_unlock(&lock);
    return found;
}

/* The allocation that begins at `start`. Under the lock. */
static struct allocation *at_start(uintptr_t start)
{
    size_t at = behind(start);
    return at && table[at - 1].start == start ? &table[at - 1] : 0;
}

void memory_flags(uintptr_t start, unsigned flags)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = at_start(start);
    if (found)
        found->flags = flags;
    pthread_mutex_unlock(&lock);
}

bool memory_leave(uintptr_t start)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = at_start(start);
    bool first = found && !found->leaves;
    if (found)
        found->leaves = true;
    pthread_mutex_unlock(&lock);
    return first;
}

struct card *memory_card(const void *address)
{
    struct allocation found;
    return memory_find((uintptr_t)address, &found) && !memory_on_host(&found) ? found.context->card : 0;
}

bool memory_on_card(const void *address, const struct card *card)
{
    return memory_card(address) == card;
}

bool memory_holds(uintptr_t address, size_t size)
{
    struct allocation found;
    while (memory_find(address, &found)) {
        size_t here = found.size - (address - found.start);
        if (size <= here)
            return true;
        address += here; /* a mapping may begin where another ends */
        size -= here;
    }
    return false;
}

CUresult memory_adopt(struct context *context, void *start, size_t size, enum memory_kind kind)
{
    pthread_mutex_lock(&lock);
    bool good = insert((struct allocation){.start = (uintptr_t)start, .size = size, .kind = kind, .context = context});
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_forget(void *start)
{
    struct allocation found;
    pthread_mutex_lock(&lock);
    take((uintptr_t)start, &found);
    pthread_mutex_unlock(&lock);
}

static bool charged(enum memory_kind kind)
{
    return kind == MEMORY_DEVICE || kind == MEMORY_MANAGED;
}

size_t memory_charged(const struct card *card)
{
    size_t total = virtual_charged(card);
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < used; at++)
        if (charged(table[at].kind) && table[at].context->card == card)
            total += table[at].mapped;
    pthread_mutex_unlock(&lock);
    return total;
}

static void give_back(const struct allocation *allocation)
{
    if (!allocation->mapped)
        return;
    munmap((void *)allocation->start, allocation->mapped + PAGE);
    if (charged(allocation->kind))
        card_release(allocation->context->card, allocation->mapped);
    if (allocation->pool)
        pool_count(allocation->pool, allocation->mapped, false);
}

void memory_of_pool(uintptr_t start, struct pool *pool)
{
    pthread_mutex_lock(&lock);
    struct allocation *found = at_start(start);
    if (found) {
        found->pool = pool;
        pool_count(pool, found->mapped, true);
    }
    pthread_mutex_unlock(&lock);
}

/* The next address to map memory at. It only grows, in a region that nothing else uses, so a freed address stays
 * unmapped and uses after free fault. It starts over after 32 TiB. */
void *memory_fresh_address(size_t size)
{
    static const uintptr_t first = 0x200000000000, last = 0x400000000000;
    static uintptr_t next = 0x200000000000;
    pthread_mutex_lock(&lock);
    if (next + size > last)
        next = first;
    void *address = (void *)next;
    next += (size + (2u << 20) - 1) & ~(uintptr_t)((2u << 20) - 1);
    pthread_mutex_unlock(&lock);
    return address;
}

/* The page after each allocation stays inaccessible: a kernel that runs past the end faults. */
CUresult memory_new(struct context *context, size_t size, enum memory_kind kind, void **pointer)
{
    checkpoint_pass();
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > SIZE_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation made = {
        .size = size, .mapped = (size + PAGE - 1) & ~(size_t)(PAGE - 1), .kind = kind, .context = context};
    CUresult status = charged(kind) ? card_reserve(context->card, made.mapped) : CUDA_SUCCESS;
    if (status)
        return status;
    void *memory = mmap(memory_fresh_address(made.mapped + PAGE), made.mapped + PAGE, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED && mprotect(memory, made.mapped, PROT_READ | PROT_WRITE)) {
        munmap(memory, made.mapped + PAGE);
        memory = MAP_FAILED;
    }
    if (memory == MAP_FAILED) {
        if (charged(kind))
            card_release(context->card, made.mapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made.start = (uintptr_t)memory;
    pthread_mutex_lock(&lock);
    bool good = insert(made);
    pthread_mutex_unlock(&lock);
    if (!good) {
        give_back(&made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = memory;
    return CUDA_SUCCESS;
}

CUresult memory_free(uintptr_t start, bool host)
{
    struct allocation found;
    pthread_mutex_lock(&lock);
    bool good = take(start, &found);
    if (good && (!found.mapped || host != (found.kind == MEMORY_HOST))) {
        insert(found); /* not freed by this call */
        good = false;
    }
    pthread_mutex_unlock(&lock);
    if (!good)
        return CUDA_ERROR_INVALID_VALUE;
    give_back(&found);
    return CUDA_SUCCESS;
}

/* In a stream; memory of every kind of pool is returned this way. */
void memory_free_later(uintptr_t start)
{
    if (memory_free(start, false))
        memory_free(start, true);
}

void memory_free_context(struct context *context)
{
    for (;;) {
        struct allocation found;
        bool good = false;
        pthread_mutex_lock(&lock);
        for (size_t at = 0; at < used && !good; at++)
            if (table[at].context == context)
                good = take(table[at].start, &found);
        pthread_mutex_unlock(&lock);
        if (!good)
            return;
        give_back(&found);
    }
}
