/* Virtual memory management: memory without an address (cuMemCreate), which may be mapped to several addresses.
 *
 * The memory and its charge exist while a handle or a mapping refers to it. Others may keep memory alive that was
 * exported, or bound to an object whose end the driver does not report: it stays charged until this process ends.
 * Memory that another process exported is charged by the size of its mappings. */
#include "enforce.h"
#include <pthread.h>
#include <stdlib.h>

struct block {
    struct block *next;
    CUmemGenericAllocationHandle handle;
    int gpu; /* -1: host memory */
    uint64_t bytes;
    unsigned handles, mappings;
    bool kept, imported;
};
struct mapping {
    struct mapping *next;
    struct block *block;
    CUdeviceptr start;
    uint64_t size, charged;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static struct mapping *mappings;

void virtual_before_fork(void)
{
    pthread_mutex_lock(&lock);
}
void virtual_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

void virtual_in_child(void)
{
    pthread_mutex_init(&lock, 0);
    blocks = 0; /* they are the parent's; a page or two of memory is lost */
    mappings = 0;
}

/* ---- under the lock ---- */
static struct block *find(CUmemGenericAllocationHandle handle)
{
    struct block *block = blocks;
    while (block && (block->handle != handle || !block->handles))
        block = block->next;
    return block;
}

static struct block *add_block(CUmemGenericAllocationHandle handle, int gpu, uint64_t bytes, bool imported)
{
    struct block *block = calloc(1, sizeof *block);
    if (block) {
        *block = (struct block){blocks, handle, gpu, bytes, 1, 0, false, imported};
        blocks = block;
    }
    return block;
}

static void end_if_unused(struct block *block)
{
    if (block->handles || block->mappings || block->kept)
        return;
    if (block->gpu >= 0 && !block->imported)
        granules_give_back((unsigned)block->gpu, block->bytes);
    struct block **place = &blocks;
    while (*place != block)
        place = &(*place)->next;
    *place = block->next;
    free(block);
}

static void unmap(struct mapping **place)
{
    struct mapping *mapping = *place;
    struct block *block = mapping->block;
    *place = mapping->next;
    if (mapping->charged)
        account_give_back((unsigned)block->gpu, mapping->charged);
    block->mappings--;
    end_if_unused(block);
    free(mapping);
}

static void keep(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    struct block *block = find(handle);
    if (block)
        block->kept = true;
    pthread_mutex_unlock(&lock);
}

/* ---- the API ---- */
static int place_of(const CUmemAllocationProp *wanted)
{
    if (!wanted || wanted->location.type == CU_MEM_LOCATION_TYPE_HOST
        || wanted->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA
        || wanted->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return -1;
    return wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_gpu(wanted->location.id) : current_gpu();
}

API cuMemCreate(CUmemGenericAllocationHandle *made, size_t size, const CUmemAllocationProp *wanted,
                unsigned long long flags)
{
    struct charge charge;
    CUresult status = charge_begin_on(&charge, "cuMemCreate", place_of(wanted), size);
    if (status)
        return status;
    status = cudaapi_real.cuMemCreate(made, size, wanted, flags);
    if (status) {
        if (charge.gpu >= 0)
            granules_give_back((unsigned)charge.gpu, charge.bytes);
        return status;
    }
    pthread_mutex_lock(&lock);
    add_block(*made, charge.gpu, charge.bytes, false); /* without an entry it stays charged until the process ends */
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock); /* around the driver's call: right after it, another thread may get the same handle */
    struct block *block = find(handle);
    CUresult status = cudaapi_real.cuMemRelease(handle);
    if (!status && block) {
        block->handles--;
        end_if_unused(block);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Another reference to the same handle, even if the program released it before. */
API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    pthread_mutex_lock(&lock);
    CUresult status = cudaapi_real.cuMemRetainAllocationHandle(handle, address);
    for (struct mapping *mapping = mappings; !status && mapping; mapping = mapping->next)
        if ((CUdeviceptr)(uintptr_t)address - mapping->start < mapping->size) {
            mapping->block->handle = *handle;
            mapping->block->handles++;
            break;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, CUmemAllocationHandleType kind)
{
    CUmemAllocationProp properties = {0};
    CUresult status = cudaapi_real.cuMemImportFromShareableHandle(handle, shared, kind);
    if (status)
        return status;
    if (cudaapi_real.cuMemGetAllocationPropertiesFromHandle(&properties, *handle))
        properties.location.type = CU_MEM_LOCATION_TYPE_INVALID;
    pthread_mutex_lock(&lock);
    bool good = add_block(*handle, place_of(&properties), 0, true) != 0;
    pthread_mutex_unlock(&lock);
    if (!good)
        cudaapi_real.cuMemRelease(*handle);
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult map(struct block *block, CUdeviceptr start, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct mapping *mapping = calloc(1, sizeof *mapping);
    uint64_t charged = block->imported && block->gpu >= 0 ? granules_round((unsigned)block->gpu, size) : 0;
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = charged && !account_charge((unsigned)block->gpu, charged)
                          ? charge_refused("cuMemMap", (unsigned)block->gpu, charged)
                          : CUDA_SUCCESS;
    if (status) {
        free(mapping);
        return status;
    }
    status = cudaapi_real.cuMemMap(start, size, offset, handle, flags);
    if (status) {
        if (charged)
            account_give_back((unsigned)block->gpu, charged);
        free(mapping);
        return status;
    }
    *mapping = (struct mapping){mappings, block, start, size, charged};
    mappings = mapping;
    block->mappings++;
    return CUDA_SUCCESS;
}

API cuMemMap(CUdeviceptr start, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags)
{
    pthread_mutex_lock(&lock);
    struct block *block = find(handle);
    CUresult status = block ? map(block, start, size, offset, handle, flags)
                            : cudaapi_real.cuMemMap(start, size, offset, handle, flags);
    pthread_mutex_unlock(&lock);
    return status;
}

API cuMemUnmap(CUdeviceptr start, size_t size)
{
    pthread_mutex_lock(&lock);
    CUresult status = cudaapi_real.cuMemUnmap(start, size);
    for (struct mapping **place = &mappings; !status && *place;)
        if ((*place)->start - start < size)
            unmap(place);
        else
            place = &(*place)->next;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- memory that others may keep alive ---- */
API cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType kind,
                                 unsigned long long flags)
{
    CUresult status = cudaapi_real.cuMemExportToShareableHandle(shared, handle, kind, flags);
    if (!status)
        keep(handle);
    return status;
}

static CUresult kept_by_arrays(CUresult status, const CUarrayMapInfo *list, unsigned count)
{
    for (unsigned at = 0; !status && at < count; at++)
        if (list[at].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            keep(list[at].memHandle.memHandle);
    return status;
}

API cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    return kept_by_arrays(cudaapi_real.cuMemMapArrayAsync(list, count, stream), list, count);
}

API cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    return kept_by_arrays(cudaapi_real.cuMemMapArrayAsync_ptsz(list, count, stream), list, count);
}

API cuMulticastBindMem(CUmemGenericAllocationHandle group, size_t group_offset, CUmemGenericAllocationHandle handle,
                       size_t offset, size_t size, unsigned long long flags)
{
    CUresult status = cudaapi_real.cuMulticastBindMem(group, group_offset, handle, offset, size, flags);
    if (!status)
        keep(handle);
    return status;
}

API cuMulticastBindMem_v2(CUmemGenericAllocationHandle group, CUdevice device, size_t group_offset,
                          CUmemGenericAllocationHandle handle, size_t offset, size_t size, unsigned long long flags)
{
    CUresult status = cudaapi_real.cuMulticastBindMem_v2(group, device, group_offset, handle, offset, size, flags);
    if (!status)
        keep(handle);
    return status;
}

API cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t place,
                             CUmemGenericAllocationHandle handle, cuuint64_t offset, cuuint64_t size,
                             unsigned long long flags)
{
    CUresult status = cudaapi_real.cuLogicalEndpointBindMem(endpoint, device, place, handle, offset, size, flags);
    if (!status)
        keep(handle);
    return status;
}
