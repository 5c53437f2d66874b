/* Settings that a real GPU acts on and that have no effect here: they are checked, and stored where they can be read
 * back. */
#include "softgpu.h"

static size_t limits[CU_LIMIT_MAX] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
};

static bool known_limit(CUlimit which)
{
    return which == CU_LIMIT_STACK_SIZE || which == CU_LIMIT_PRINTF_FIFO_SIZE || which == CU_LIMIT_MALLOC_HEAP_SIZE;
}

API cuCtxGetLimit(size_t *value, CUlimit which)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!known_limit(which))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = limits[which];
    return CUDA_SUCCESS;
}

API cuCtxSetLimit(CUlimit which, size_t value)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (!known_limit(which))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    limits[which] = value;
    return CUDA_SUCCESS;
}

API cuCtxGetCacheConfig(CUfunc_cache *config)
{
    struct context *context;
    ANSWER(context_current(&context), config, CU_FUNC_CACHE_PREFER_NONE);
}

API cuCtxSetCacheConfig(CUfunc_cache config)
{
    struct context *context;
    CUresult status = context_current(&context);
    return status ? status : config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config)
{
    struct function *function;
    CUresult status = function_find(handle, &function);
    return status ? status : config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuCtxDisablePeerAccess(CUcontext peer)
{
    struct context *context;
    CUresult status = context_current(&context);
    return status ? status : handle_get(HANDLE_CONTEXT, peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned flags, CUstream on)
{
    struct stream *stream;
    (void)location;
    CUresult status = stream_find(on, &stream);
    return status ? status : !flags && memory_holds(pointer, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAdvise_v2(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUmemLocation location)
{
    (void)advice;
    (void)location;
    CUresult status = sg_ready();
    return status ? status : memory_holds(pointer, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

API cuProfilerStart(void)
{
    return sg_ready();
}

API cuProfilerStop(void)
{
    return sg_ready();
}
