/* Memory pools: names for a GPU's memory. They keep nothing in reserve: freed memory is free at once. */
#include "softgpu.h"
#include <stdlib.h>

struct pool {
    CUmemoryPool handle;
    CUdevice device; /* or ANY_DEVICE: the process's */
    enum memory_kind kind;
    bool default_pool;
    uint64_t release_threshold;
    _Atomic uint64_t held, most; /* bytes of the GPU; without a reserve, held is also what is in use */
};

CUmemoryPool pool_handle(const struct pool *pool)
{
    return pool ? pool->handle : 0;
}

void pool_count(struct pool *pool, size_t bytes, bool taken)
{
    if (!taken) {
        atomic_fetch_sub(&pool->held, bytes);
        return;
    }
    uint64_t now = atomic_fetch_add(&pool->held, bytes) + bytes, most = atomic_load(&pool->most);
    while (now > most && !atomic_compare_exchange_weak(&pool->most, &most, now)) {
    }
}

enum { ANY_DEVICE = -1 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *defaults[MOST_CARDS], *current[MOST_CARDS];

static struct pool *pool_new(CUdevice device, enum memory_kind kind, bool default_pool)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool) {
        pool->device = device;
        pool->kind = kind;
        pool->default_pool = default_pool;
        pool->handle = handle_new(HANDLE_POOL, pool);
    }
    return pool && pool->handle ? pool : 0;
}

static CUresult default_pool(CUdevice device, struct pool **pool)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    if (!defaults[device])
        current[device] = defaults[device] = pool_new(device, MEMORY_DEVICE, true);
    *pool = defaults[device];
    pthread_mutex_unlock(&lock);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *made, CUdevice device)
{
    struct pool *pool;
    ANSWER(default_pool(device, &pool), made, pool->handle);
}

API cuDeviceGetMemPool(CUmemoryPool *made, CUdevice device)
{
    struct pool *pool;
    ANSWER(default_pool(device, &pool), made, current[device]->handle);
}

API cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    struct pool *ignored, *pool = handle_get(HANDLE_POOL, handle);
    CUresult status = default_pool(device, &ignored);
    if (!status && (!pool || pool->device != device))
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        current[device] = pool;
    return status;
}

static enum memory_kind pool_kind(const CUmemLocation *location, CUmemAllocationType type)
{
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return MEMORY_MANAGED;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? MEMORY_DEVICE : MEMORY_HOST;
}

/* Pools of managed and host memory belong to the process, not to a GPU. */
API cuMemGetDefaultMemPool(CUmemoryPool *made, CUmemLocation *location, CUmemAllocationType type)
{
    static struct pool *shared[MEMORY_REGISTERED];
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!made || !location)
        return CUDA_ERROR_INVALID_VALUE;
    enum memory_kind kind = pool_kind(location, type);
    if (kind == MEMORY_DEVICE)
        return cuDeviceGetDefaultMemPool(made, location->id);
    pthread_mutex_lock(&lock);
    if (!shared[kind])
        shared[kind] = pool_new(ANY_DEVICE, kind, true);
    *made = shared[kind] ? shared[kind]->handle : 0;
    pthread_mutex_unlock(&lock);
    return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemGetMemPool(CUmemoryPool *made, CUmemLocation *location, CUmemAllocationType type)
{
    if (location && pool_kind(location, type) == MEMORY_DEVICE)
        return cuDeviceGetMemPool(made, location->id);
    return cuMemGetDefaultMemPool(made, location, type);
}

/* Every GPU of a process can access every pool. */
API cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *wanted, size_t count)
{
    struct card *card;
    if (!handle_get(HANDLE_POOL, handle) || (count && !wanted))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < count; at++)
        if (wanted[at].location.type == CU_MEM_LOCATION_TYPE_DEVICE && sg_card(wanted[at].location.id, &card))
            return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

API cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    if (!flags || !location || !handle_get(HANDLE_POOL, handle))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

API cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *wanted)
{
    struct card *card;
    if (!made || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    if (wanted->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    bool here = wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult status = here ? sg_card(wanted->location.id, &card) : sg_ready();
    if (status)
        return status;
    enum memory_kind kind = pool_kind(&wanted->location, wanted->allocType);
    struct pool *pool = pool_new(here ? wanted->location.id : ANY_DEVICE, kind, false);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = pool->handle;
    return CUDA_SUCCESS;
}

API cuMemPoolDestroy(CUmemoryPool handle)
{
    struct pool *pool = handle_get(HANDLE_POOL, handle);
    if (!pool || pool->default_pool)
        return CUDA_ERROR_INVALID_VALUE;
    handle_drop(HANDLE_POOL, handle);
    pthread_mutex_lock(&lock);
    if (pool->device != ANY_DEVICE && current[pool->device] == pool)
        current[pool->device] = defaults[pool->device];
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS; /* memory that is still allocated keeps counting; the structure stays */
}

API cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    (void)keep;
    return handle_get(HANDLE_POOL, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *value)
{
    struct pool *pool = handle_get(HANDLE_POOL, handle);
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        *(cuuint64_t *)value = pool->release_threshold;
        return CUDA_SUCCESS;
    }
    if (which == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES || which == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        || which == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
        *(int *)value = 0;
        return CUDA_SUCCESS;
    }
    if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) {
        *(cuuint64_t *)value = atomic_load(&pool->held);
        return CUDA_SUCCESS;
    }
    if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || which == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
        *(cuuint64_t *)value = atomic_load(&pool->most);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

API cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *value)
{
    struct pool *pool = handle_get(HANDLE_POOL, handle);
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->release_threshold = *(const cuuint64_t *)value;
    else if (which != CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
             && which != CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
             && which != CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

static bool serves(const struct pool *pool, const struct card *card)
{
    return pool->device == ANY_DEVICE || pool->device == card->ordinal;
}

API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool handle, CUstream on)
{
    struct pool *pool = handle_get(HANDLE_POOL, handle);
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    if (!status && (!pointer || !pool || !serves(pool, stream->context->card)))
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = memory_new(stream->context, size, pool->kind, (void **)pointer);
    if (!status)
        memory_of_pool(*pointer, pool);
    return status;
}

API cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream on)
{
    struct stream *stream;
    struct pool *pool;
    CUresult status = stream_find(on, &stream);
    if (!status)
        status = default_pool(stream->context->card->ordinal, &pool);
    if (status)
        return status;
    return cuMemAllocFromPoolAsync(pointer, size, current[stream->context->card->ordinal]->handle, on);
}
