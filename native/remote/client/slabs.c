/* Small allocations come out of slabs, without a round trip each. They have the device's real addresses, because
 * kernels get them. */
#include "client.h"
#include <pthread.h>
#include <stdlib.h>

enum { GRAIN = 512, SLAB = 8 << 20, SMALL = 1 << 20, SIZES = SMALL / GRAIN + 1 };

struct block {
    struct block *next;
    uintptr_t base;
    uint64_t freed;  /* the count of changes then */
    CUstream stream; /* in whose order it was freed; NULL: at once */
};

struct slabs {
    struct slabs *next;
    CUcontext context;
    pthread_mutex_t lock;
    uintptr_t at, end; /* what is left of the newest slab */
    struct block *free[SIZES];
};

static struct slabs *all;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static struct slabs *slabs_here(void)
{
    CUcontext context = context_current();
    if (!context)
        return NULL;
    pthread_mutex_lock(&all_lock);
    struct slabs *slabs = all;
    while (slabs && slabs->context != context)
        slabs = slabs->next;
    if (!slabs && (slabs = calloc(1, sizeof *slabs))) {
        slabs->context = context;
        slabs->next = all;
        pthread_mutex_init(&slabs->lock, NULL);
        all = slabs;
    }
    pthread_mutex_unlock(&all_lock);
    return slabs;
}

/* A destroyed context's memory is gone with it; the next context may get the same number. */
void slabs_forget(CUcontext context)
{
    pthread_mutex_lock(&all_lock);
    for (struct slabs *slabs = all; slabs; slabs = slabs->next)
        if (slabs->context == context)
            slabs->context = NULL;
    pthread_mutex_unlock(&all_lock);
}

static size_t grains(size_t size)
{
    return (size + GRAIN - 1) / GRAIN;
}

/* A freed block. What was freed earlier in the same stream's order, or before the device was last idle, can be used at
 * once. Otherwise the worker must wait for the device first, as the driver does when memory is freed. */
static uintptr_t reuse(struct slabs *slabs, size_t count, CUstream stream, bool *fence)
{
    struct block *block = slabs->free[count];
    if (!block)
        return 0;
    slabs->free[count] = block->next;
    uintptr_t base = block->base;
    bool in_order = stream && stream == block->stream;
    *fence = !in_order && !idle_since(slabs->context, block->freed);
    free(block);
    return base;
}

static uintptr_t cut(struct slabs *slabs, size_t size)
{
    CUdeviceptr fresh;
    if (slabs->end - slabs->at < size) {
        if (ask_cuMemAlloc_v2(&fresh, SLAB))
            return 0;
        slabs->at = fresh;
        slabs->end = fresh + SLAB;
    }
    uintptr_t base = slabs->at;
    slabs->at += size;
    return base;
}

static CUresult wait_on_the_worker(void)
{
    struct message m;
    int status = message_begin(&m, OP_fence);
    return (CUresult)(status ? status : message_send(&m));
}

CUresult slab_take(CUdeviceptr *found, size_t size, CUstream stream)
{
    struct slabs *slabs = size && size <= SMALL && !is_capturing() && !link_is_strict() ? slabs_here() : NULL;
    bool fence = false;
    *found = 0;
    if (!slabs)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&slabs->lock);
    uintptr_t base = reuse(slabs, grains(size), stream, &fence);
    if (!base)
        base = cut(slabs, grains(size) * GRAIN);
    pthread_mutex_unlock(&slabs->lock);
    CUresult status = fence ? wait_on_the_worker() : CUDA_SUCCESS;
    if (status || !base)
        return status;
    const struct range range = {.base = base, .size = size, .slabs = slabs};
    if (!range_add(&range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *found = base;
    return CUDA_SUCCESS;
}

void slab_give(const struct range *range, CUstream stream)
{
    struct slabs *slabs = range->slabs;
    struct block *block = malloc(sizeof *block);
    if (!block)
        return; /* the block is lost until the context ends */
    *block = (struct block){NULL, range->base, link_changes(), stream};
    pthread_mutex_lock(&slabs->lock);
    block->next = slabs->free[grains(range->size)];
    slabs->free[grains(range->size)] = block;
    pthread_mutex_unlock(&slabs->lock);
}
