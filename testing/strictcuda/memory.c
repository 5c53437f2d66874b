/* Memory of the strict driver: granules of 2 MiB, and small allocations that share them. */
#include "objects.h"
#include <string.h>

#define GRANULE (UINT64_C(2) << 20)
#define TOTAL (UINT64_C(16) << 30)

static uint64_t large[DEVICES], small[DEVICES];
static uint64_t next_address = UINT64_C(1) << 40;

static uint64_t whole(uint64_t bytes)
{
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

static uint64_t *part(int device, uint64_t bytes)
{
    return bytes >= GRANULE / 2 ? &large[device] : &small[device];
}

/* What a card has given away: for tests. */
PUBLIC uint64_t strict_memory(int device)
{
    return large[device] + whole(small[device]);
}

bool strict_take(int device, uint64_t bytes)
{
    if (bytes > TOTAL || strict_memory(device) + whole(bytes) > TOTAL)
        return false;
    *part(device, bytes) += bytes >= GRANULE / 2 ? whole(bytes) : bytes;
    return true;
}

void strict_give(int device, uint64_t bytes)
{
    *part(device, bytes) -= bytes >= GRANULE / 2 ? whole(bytes) : bytes;
}

API cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    ENTER;
    strict_unsafe(entered);
    struct object *context = strict_current(entered);
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (!strict_take(context->device, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct object *made = strict_new(MEMORY, context);
    made->device = context->device;
    made->bytes = size;
    made->address = next_address;
    next_address += whole(size);
    *pointer = made->address;
    return CUDA_SUCCESS;
}

struct object *strict_memory_at(CUdeviceptr pointer)
{
    for (struct object *each = NULL; (each = strict_each(each, MEMORY));)
        if (pointer - each->address < each->bytes)
            return each;
    return NULL;
}

API cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER;
    strict_unsafe(entered);
    struct object *found = strict_memory_at(pointer);
    if (!found || found->address != pointer)
        strict_forbid(entered, "not an allocation, or freed before");
    strict_destroy(found);
    return CUDA_SUCCESS;
}

API cuMemGetInfo_v2(size_t *available, size_t *total)
{
    ENTER;
    *total = TOTAL;
    *available = TOTAL - strict_memory(strict_current(entered)->device);
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER;
    (void)device;
    *bytes = TOTAL;
    return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr pointer)
{
    ENTER;
    struct object *found = strict_memory_at(pointer);
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    if (start)
        *start = found->address;
    if (size)
        *size = found->bytes;
    return CUDA_SUCCESS;
}

/* ---- memory of another process: the first byte of the handle is the card that it is on, the second its MiB ---- */

API cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    ENTER;
    (void)flags;
    strict_unsafe(entered);
    struct object *made = strict_new(MEMORY, strict_current(entered));
    made->device = handle.reserved[0];
    made->bytes = (uint64_t)handle.reserved[1] << 20;
    made->address = next_address;
    strict_take(made->device, made->bytes);
    next_address += whole(made->bytes);
    *pointer = made->address;
    return CUDA_SUCCESS;
}

API cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    ENTER;
    struct object *found = strict_memory_at(pointer);
    if (!found)
        strict_forbid(entered, "not an imported allocation, or closed before");
    strict_destroy(found);
    return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr pointer)
{
    ENTER;
    struct object *found = strict_memory_at(pointer);
    if (!found || which != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, &found->device, sizeof found->device);
    return CUDA_SUCCESS;
}

/* ---- one pool for each card, which keeps nothing ---- */

static char pools[DEVICES];

static int pool_device(const char *call, CUmemoryPool pool)
{
    if ((char *)pool < pools || (char *)pool >= pools + DEVICES)
        strict_forbid(call, "not a memory pool");
    return (int)((char *)pool - pools);
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER;
    *pool = (CUmemoryPool)&pools[device];
    return CUDA_SUCCESS;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER;
    *pool = (CUmemoryPool)&pools[device];
    return CUDA_SUCCESS;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    ENTER;
    (void)which;
    cuuint64_t sum = 0;
    int device = pool_device(entered, pool);
    for (struct object *each = NULL; (each = strict_each(each, MEMORY));)
        if (each->link && each->device == device)
            sum += whole(each->bytes);
    memcpy(value, &sum, sizeof sum);
    return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    ENTER;
    (void)keep;
    pool_device(entered, pool);
    return CUDA_SUCCESS;
}

API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    ENTER;
    struct object *of = strict_stream(entered, stream);
    int device = pool_device(entered, pool);
    uint64_t bytes = whole(size);
    *pointer = next_address;
    next_address += bytes;
    if (strict_is_capturing(of)) {
        struct object *graph = of->capture->graph, *node = strict_new(NODE, NULL);
        node->link = graph;
        node->device = device;
        node->bytes = size;
        return CUDA_SUCCESS;
    }
    if (!strict_take(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct object *made = strict_new(MEMORY, of->context);
    made->link = of;
    made->device = device;
    made->bytes = bytes;
    made->address = *pointer;
    return CUDA_SUCCESS;
}

API cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    ENTER;
    struct object *of = strict_stream(entered, stream), *found = strict_memory_at(pointer);
    if (strict_is_capturing(of))
        return CUDA_SUCCESS;
    if (!found)
        strict_forbid(entered, "not an allocation, or freed before");
    strict_destroy(found);
    return CUDA_SUCCESS;
}

/* ---- memory nodes of graphs ---- */

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    ENTER;
    struct object *of = strict_object(entered, graph, GRAPH);
    size_t room = nodes ? *count : 0, found = 0;
    for (struct object *each = NULL; (each = strict_each(each, NODE));)
        if (each->link == of && (found++ < room))
            nodes[found - 1] = (CUgraphNode)each;
    *count = found;
    return CUDA_SUCCESS;
}

API cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    ENTER;
    strict_object(entered, node, NODE);
    *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
}

API cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *found)
{
    ENTER;
    const struct object *of = strict_object(entered, node, NODE);
    memset(found, 0, sizeof *found);
    found->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    found->poolProps.location.id = of->device;
    found->bytesize = of->bytes;
    return CUDA_SUCCESS;
}

API cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER;
    (void)device;
    return CUDA_SUCCESS;
}
