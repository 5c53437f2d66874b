/* Memory pools. A pool keeps freed memory for later, so the charge is what the pool holds of the GPU, not what is
 * allocated from it. The driver reports how much a pool holds; the charge is updated after every call that can change
 * it.
 *
 * An allocation that may make its pool grow is charged before it is tried. An allocation for which the pool has room is
 * tried first; if the pool grew nevertheless and that does not fit, the allocation is undone. */
#include "enforce.h"
#include "lease.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct pool {
    struct pool *next;
    CUmemoryPool handle;
    int gpu; /* -1: host memory */
    uint64_t charged;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static atomic_uint pool_count;

void pools_before_fork(void)
{
    pthread_mutex_lock(&lock);
}
void pools_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

void pools_in_child(void)
{
    pthread_mutex_init(&lock, 0);
    for (struct pool *next; pools; pools = next) {
        next = pools->next;
        free(pools);
    }
    atomic_store(&pool_count, 0);
}

/* ---- under the lock ---- */
static struct pool *pool_new(CUmemoryPool handle, int gpu)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool) {
        *pool = (struct pool){pools, handle, gpu, 0};
        pools = pool;
        atomic_fetch_add(&pool_count, 1);
    }
    return pool;
}

static bool is_of(CUmemoryPool handle, CUdevice device)
{
    CUmemoryPool pool;
    return (cudaapi_real.cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS && pool == handle)
           || (cudaapi_real.cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS && pool == handle);
}

/* A pool that the program did not create is a GPU's own. */
static struct pool *pool_find(CUmemoryPool handle)
{
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->handle == handle)
            return pool;
    for (CUdevice device = 0; device_gpu(device) >= 0; device++)
        if (is_of(handle, device))
            return pool_new(handle, device_gpu(device));
    return 0;
}

static bool figure(CUmemoryPool handle, CUmemPool_attribute which, uint64_t *value)
{
    cuuint64_t answer = 0;
    CUresult status = cudaapi_real.cuMemPoolGetAttribute(handle, which, &answer);
    *value = answer;
    return status == CUDA_SUCCESS;
}

/* Move the pool's charge to what it holds. `charged` may include what was charged ahead. */
static void settle(struct pool *pool)
{
    uint64_t reserved;
    if (pool->gpu < 0 || !figure(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
        return;
    if (reserved > pool->charged)
        account_add((unsigned)pool->gpu, reserved - pool->charged);
    else
        account_give_back((unsigned)pool->gpu, pool->charged - reserved);
    pool->charged = reserved;
}

/* Charge what the pool grew beyond what was charged ahead; false if it does not fit. */
static bool settle_growth(struct pool *pool)
{
    uint64_t reserved;
    if (figure(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) && reserved > pool->charged) {
        if (!account_charge((unsigned)pool->gpu, reserved - pool->charged))
            return false;
        pool->charged = reserved;
    }
    settle(pool);
    return true;
}

static bool has_room(const struct pool *pool, uint64_t bytes)
{
    uint64_t reserved, used;
    return figure(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved)
           && figure(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) && used <= reserved
           && bytes <= reserved - used && reserved == pool->charged;
}

static bool charge_ahead(struct pool *pool, uint64_t bytes)
{
    if (!account_charge((unsigned)pool->gpu, bytes))
        return false;
    pool->charged += bytes;
    return true;
}

static void trim(unsigned gpu)
{
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->gpu == (int)gpu) {
            cudaapi_real.cuMemPoolTrimTo(pool->handle, 0);
            settle(pool);
        }
}

static bool make_room(struct pool *pool, uint64_t bytes, CUstream stream)
{
    if (has_room(pool, bytes) || charge_ahead(pool, bytes))
        return true;
    trim((unsigned)pool->gpu);
    if (charge_ahead(pool, bytes))
        return true;
    cudaapi_real.cuStreamSynchronize(stream); /* what was freed in the stream is free after this */
    trim((unsigned)pool->gpu);
    return charge_ahead(pool, bytes);
}

static CUresult allocate(struct pool *pool, CUdeviceptr *pointer, uint64_t size, CUstream stream, bool per_thread)
{
    uint64_t bytes = account_round(size), known;
    if (!figure(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &known))
        return CUDA_ERROR_NOT_SUPPORTED; /* a driver (11.2) that does not report what its pools hold */
    settle(pool);
    if (!make_room(pool, bytes, per_thread && !stream ? CU_STREAM_PER_THREAD : stream))
        return charge_refused("cuMemAllocAsync", (unsigned)pool->gpu, bytes);
    CUresult status = per_thread ? cudaapi_real.cuMemAllocFromPoolAsync_ptsz(pointer, size, pool->handle, stream)
                                 : cudaapi_real.cuMemAllocFromPoolAsync(pointer, size, pool->handle, stream);
    if (!status && !settle_growth(pool)) {
        cudaapi_real.cuMemFree_v2(*pointer);
        cudaapi_real.cuMemPoolTrimTo(pool->handle, 0);
        status = charge_refused("cuMemAllocAsync", (unsigned)pool->gpu, bytes);
    }
    settle(pool);
    return status;
}

/* ---- the API ---- */
static CUresult from_pool(CUdeviceptr *pointer, size_t size, CUmemoryPool handle, CUstream stream, bool per_thread)
{
    /* In a capture it becomes a memory node, which is charged when the graph is instantiated. */
    if (lease_is_captured(per_thread && !stream ? CU_STREAM_PER_THREAD : stream))
        return per_thread ? cudaapi_real.cuMemAllocFromPoolAsync_ptsz(pointer, size, handle, stream)
                          : cudaapi_real.cuMemAllocFromPoolAsync(pointer, size, handle, stream);
    pthread_mutex_lock(&lock);
    struct pool *pool = pool_find(handle);
    CUresult status = !pool            ? CUDA_ERROR_INVALID_VALUE
                      : pool->gpu >= 0 ? allocate(pool, pointer, size, stream, per_thread)
                      : per_thread     ? cudaapi_real.cuMemAllocFromPoolAsync_ptsz(pointer, size, handle, stream)
                                       : cudaapi_real.cuMemAllocFromPoolAsync(pointer, size, handle, stream);
    pthread_mutex_unlock(&lock);
    return status;
}

API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    return from_pool(pointer, size, pool, stream, false);
}

API cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    return from_pool(pointer, size, pool, stream, true);
}

/* Allocate from the current pool of the stream's GPU, named explicitly so that the pool is known. */
static CUresult from_current(CUdeviceptr *pointer, size_t size, CUstream stream, bool per_thread)
{
    CUmemoryPool pool;
    int gpu = stream_gpu(per_thread && !stream ? CU_STREAM_PER_THREAD : stream);
    if (gpu < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult status = cudaapi_real.cuDeviceGetMemPool(&pool, gpu_device((unsigned)gpu));
    return status ? status : from_pool(pointer, size, pool, stream, per_thread);
}

API cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return from_current(pointer, size, stream, false);
}

API cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return from_current(pointer, size, stream, true);
}

API cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    CUresult status = GIVE_BACK(HOLDING_POINTER, pointer, cudaapi_real.cuMemFreeAsync(pointer, stream));
    pools_refresh();
    return status;
}

API cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    CUresult status = GIVE_BACK(HOLDING_POINTER, pointer, cudaapi_real.cuMemFreeAsync_ptsz(pointer, stream));
    pools_refresh();
    return status;
}

API cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *wanted)
{
    CUresult status = cudaapi_real.cuMemPoolCreate(made, wanted);
    if (status)
        return status;
    CUmemLocationType where = wanted->location.type;
    int gpu = where == CU_MEM_LOCATION_TYPE_DEVICE ? device_gpu(wanted->location.id) : current_gpu();
    if (where == CU_MEM_LOCATION_TYPE_HOST || where == CU_MEM_LOCATION_TYPE_HOST_NUMA
        || where == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        gpu = -1;
    pthread_mutex_lock(&lock);
    bool good = pool_new(*made, gpu) != 0;
    pthread_mutex_unlock(&lock);
    if (!good)
        cudaapi_real.cuMemPoolDestroy(*made);
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Pointers that are still allocated keep their memory and their charge after the pool is destroyed, until the process
 * ends, because the driver no longer reports what the pool holds. */
API cuMemPoolDestroy(CUmemoryPool handle)
{
    uint64_t used = 0;
    pthread_mutex_lock(&lock);
    cudaapi_real.cuMemPoolTrimTo(handle, 0);
    figure(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    CUresult status = cudaapi_real.cuMemPoolDestroy(handle);
    for (struct pool **place = &pools; !status && *place; place = &(*place)->next)
        if ((*place)->handle == handle) {
            struct pool *gone = *place;
            *place = gone->next;
            if (gone->gpu >= 0 && gone->charged > used)
                account_give_back((unsigned)gone->gpu, gone->charged - used);
            free(gone);
            atomic_fetch_sub(&pool_count, 1);
            break;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

API cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    CUresult status = cudaapi_real.cuMemPoolTrimTo(handle, keep);
    pools_refresh();
    return status;
}

/* A pointer of another process's pool: as with other imports, the process that opened it holds it. */
API cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *shared)
{
    struct charge charge;
    size_t size = 0;
    CUresult status = cudaapi_real.cuMemPoolImportPointer(pointer, pool, shared);
    if (status)
        return status;
    if (cudaapi_real.cuMemGetAddressRange_v2(0, &size, *pointer))
        size = 0;
    status = size ? charge_begin_on(&charge, "cuMemPoolImportPointer", pointer_gpu(*pointer), size)
                  : CUDA_ERROR_NOT_SUPPORTED;
    if (status) {
        cudaapi_real.cuMemFree_v2(*pointer);
        return status;
    }
    return charge_end(charge, CUDA_SUCCESS, HOLDING_POINTER, *pointer);
}

void pools_refresh(void)
{
    if (!atomic_load_explicit(&pool_count, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool; pool = pool->next)
        settle(pool);
    pthread_mutex_unlock(&lock);
}

bool pools_trim(unsigned gpu)
{
    if (!atomic_load_explicit(&pool_count, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&lock);
    trim(gpu);
    pthread_mutex_unlock(&lock);
    return true;
}
