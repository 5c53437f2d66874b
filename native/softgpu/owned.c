/* User objects, which graphs keep alive for their callers. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>

struct owned {
    CUuserObject handle;
    atomic_uint references;
    void *object;
    CUhostFn destroy;
};

API cuUserObjectCreate(CUuserObject *made, void *object, CUhostFn destroy, unsigned references, unsigned flags)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!made || !destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct owned *owned = calloc(1, sizeof *owned);
    if (owned)
        owned->handle = handle_new(HANDLE_OWNED, owned);
    if (!owned || !owned->handle) {
        free(owned);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    owned->references = references;
    owned->object = object;
    owned->destroy = destroy;
    *made = owned->handle;
    return CUDA_SUCCESS;
}

CUresult owned_keep(CUuserObject handle, unsigned count)
{
    struct owned *owned = handle_get(HANDLE_OWNED, handle);
    if (!owned || !count)
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_add(&owned->references, count);
    return CUDA_SUCCESS;
}

CUresult owned_drop(CUuserObject handle, unsigned count)
{
    struct owned *owned = handle_get(HANDLE_OWNED, handle);
    if (!owned || !count || atomic_load(&owned->references) < count)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_fetch_sub(&owned->references, count) == count && handle_drop(HANDLE_OWNED, handle)) {
        owned->destroy(owned->object);
        free(owned);
    }
    return CUDA_SUCCESS;
}

API cuUserObjectRetain(CUuserObject handle, unsigned count)
{
    return owned_keep(handle, count);
}

API cuUserObjectRelease(CUuserObject handle, unsigned count)
{
    return owned_drop(handle, count);
}

bool keep_add(struct keep *keep, CUuserObject handle, unsigned count)
{
    struct kept *larger = realloc(keep->items, (keep->count + 1) * sizeof *larger);
    if (!larger)
        return false;
    keep->items = larger;
    keep->items[keep->count++] = (struct kept){handle, count};
    return true;
}

bool keep_copy(struct keep *to, const struct keep *from)
{
    for (size_t at = 0; at < from->count; at++)
        if (owned_keep(from->items[at].handle, from->items[at].count)
            || !keep_add(to, from->items[at].handle, from->items[at].count))
            return false;
    return true;
}

void keep_clear(struct keep *keep)
{
    for (size_t at = 0; at < keep->count; at++)
        owned_drop(keep->items[at].handle, keep->items[at].count);
    free(keep->items);
    *keep = (struct keep){0};
}
