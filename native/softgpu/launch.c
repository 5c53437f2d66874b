/* Launches. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>

CUresult launch_check(const struct context *context, const struct function *function, const struct grid *grid)
{
    uint64_t threads = (uint64_t)grid->threads[0] * grid->threads[1] * grid->threads[2];
    if (!grid->blocks[0] || !grid->blocks[1] || !grid->blocks[2] || !threads)
        return CUDA_ERROR_INVALID_VALUE;
    if (grid->blocks[0] > 0x7fffffff || grid->blocks[1] > 65535 || grid->blocks[2] > 65535 || grid->threads[2] > 64
        || grid->threads[0] > SG_MOST_THREADS || grid->threads[1] > SG_MOST_THREADS
        || threads > (uint64_t)function_most_threads(function))
        return CUDA_ERROR_INVALID_VALUE;
    if (function->module->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (grid->dynamic_shared > (uint32_t)function_most_shared(function))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Parameters arrive as pointers to each value, or as one packed buffer between two markers. */
CUresult launch_pack(const struct function *function, void **values, void **extra, unsigned char *buffer)
{
    const struct sg_kernel *kernel = function->kernel;
    if (values) {
        for (uint32_t at = 0; at < kernel->parameters; at++) {
            if (!values[at])
                return CUDA_ERROR_INVALID_VALUE;
            memcpy(buffer + kernel->offsets[at], values[at], kernel->sizes[at]);
        }
        return extra ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    const void *packed = 0;
    size_t size = 0;
    for (int at = 0; extra && extra[at] != CU_LAUNCH_PARAM_END && at < 16; at += 2) {
        if (extra[at] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            packed = extra[at + 1];
        else if (extra[at] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[at + 1])
            size = *(const size_t *)extra[at + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!kernel->parameters)
        return CUDA_SUCCESS;
    if (!packed || size < kernel->offsets[kernel->parameters - 1] + kernel->sizes[kernel->parameters - 1])
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(buffer, packed, kernel->parameter_bytes);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction handle, struct grid grid, CUstream on, void **values, void **extra)
{
    struct function *function;
    struct stream *stream;
    CUresult status = function_find(handle, &function);
    if (!status)
        status = stream_find(on, &stream);
    if (!status)
        status = launch_check(stream->context, function, &grid);
    if (status)
        return status;
    struct work *work = work_new(WORK_GRID, function->kernel->parameter_bytes);
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->grid = grid;
    work->grid.kernel = function->kernel;
    work->grid.function = function->handle;
    status = launch_pack(function, values, extra, work->parameters);
    if (status) {
        free(work);
        return status;
    }
    return stream_submit(stream, work);
}

API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, CUstream on, void **values, void **extra)
{
    struct grid grid = {
        .blocks = {grid_x, grid_y, grid_z}, .threads = {block_x, block_y, block_z}, .dynamic_shared = shared};
    return launch(function, grid, on, values, extra);
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned at = 0; at < config->numAttrs; at++)
        if (config->attrs[at].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            || config->attrs[at].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            return CUDA_ERROR_NOT_SUPPORTED;
    struct grid grid = {.blocks = {config->gridDimX, config->gridDimY, config->gridDimZ},
                        .threads = {config->blockDimX, config->blockDimY, config->blockDimZ},
                        .dynamic_shared = config->sharedMemBytes};
    return launch(function, grid, config->hStream, values, extra);
}
