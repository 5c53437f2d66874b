/* A handle consists of kind, generation and index, so garbage, freed handles and handles of another kind are detected.
 * A pointer could not be checked. */
#include "softgpu.h"
#include <sys/mman.h>

enum { INDEX_BITS = 20, MOST = 1 << INDEX_BITS, GENERATION_BITS = 20, KIND_SHIFT = INDEX_BITS + GENERATION_BITS };

struct slot {
    _Atomic(void *) object;
    _Atomic uint32_t generation;
    uint32_t next_free;
};

static struct table {
    struct slot *slots;
    uint32_t used, free; /* index 0 is never used */
} tables[HANDLE_KINDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct slot *find(enum handle_kind kind, const void *handle)
{
    uintptr_t value = (uintptr_t)handle;
    uint32_t index = value & (MOST - 1);
    if (value >> KIND_SHIFT != (uintptr_t)kind || !tables[kind].slots || !index)
        return 0;
    struct slot *slot = &tables[kind].slots[index];
    uint32_t generation = (value >> INDEX_BITS) & ((1 << GENERATION_BITS) - 1);
    return atomic_load_explicit(&slot->generation, memory_order_acquire) == generation ? slot : 0;
}

void *handle_new(enum handle_kind kind, void *object)
{
    struct table *table = &tables[kind];
    void *handle = 0;
    pthread_mutex_lock(&lock);
    if (!table->slots) {
        void *memory = mmap(0, MOST * sizeof(struct slot), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        table->slots = memory == MAP_FAILED ? 0 : memory;
    }
    uint32_t index = table->free ? table->free : table->used + 1;
    if (table->slots && index < MOST) {
        struct slot *slot = &table->slots[index];
        if (table->free)
            table->free = slot->next_free;
        else
            table->used = index;
        atomic_store_explicit(&slot->object, object, memory_order_release);
        handle = (void *)((uintptr_t)kind << KIND_SHIFT | (uintptr_t)slot->generation << INDEX_BITS | index);
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

void *handle_get(enum handle_kind kind, const void *handle)
{
    struct slot *slot = find(kind, handle);
    return slot ? atomic_load_explicit(&slot->object, memory_order_acquire) : 0;
}

void *handle_drop(enum handle_kind kind, const void *handle)
{
    void *object = 0;
    pthread_mutex_lock(&lock);
    struct slot *slot = find(kind, handle);
    if (slot && (object = atomic_exchange(&slot->object, 0))) {
        atomic_store(&slot->generation, (slot->generation + 1) & ((1 << GENERATION_BITS) - 1));
        slot->next_free = tables[kind].free;
        tables[kind].free = slot - tables[kind].slots;
    }
    pthread_mutex_unlock(&lock);
    return object;
}
