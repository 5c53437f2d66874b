/* Launches of every kind wait for the lease. */
#include "enforce.h"
#include "lease.h"
#include "pace.h"

/* `what` and `size` identify the kind of work, for its estimated duration: the function or graph, and the number of
 * threads. */
#define LEASED(what, size, stream, call)                                                                               \
    ({                                                                                                                 \
        int gpu = lease_is_captured(stream) ? -1 : stream_gpu(stream);                                                 \
        struct lease_work work = {.key = pace_key(what, size)};                                                        \
        if (gpu >= 0)                                                                                                  \
            lease_enter((unsigned)gpu, &work);                                                                         \
        CUresult answer = (call);                                                                                      \
        if (gpu >= 0)                                                                                                  \
            lease_leave((unsigned)gpu, &work, stream, answer == CUDA_SUCCESS);                                         \
        answer;                                                                                                        \
    })
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

#define SHAPE                                                                                                          \
    CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,                 \
        unsigned shared, CUstream stream, void **values
#define SHAPED function, gx, gy, gz, bx, by, bz, shared, stream, values
#define THREADS(x, y, z, blocks) ((uint64_t)(x) * (y) * (z) * (blocks))
#define SHAPE_THREADS THREADS(gx, gy, gz, (uint64_t)bx * by * bz)

API cuLaunchKernel(SHAPE, void **extra)
{
    return LEASED(function, SHAPE_THREADS, stream, cudaapi_real.cuLaunchKernel(SHAPED, extra));
}

API cuLaunchKernel_ptsz(SHAPE, void **extra)
{
    return LEASED(function, SHAPE_THREADS, PER_THREAD(stream), cudaapi_real.cuLaunchKernel_ptsz(SHAPED, extra));
}

static uint64_t config_threads(const CUlaunchConfig *config)
{
    if (!config)
        return 1;
    return THREADS(config->gridDimX, config->gridDimY, config->gridDimZ,
                   (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ);
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
{
    CUstream stream = config ? config->hStream : 0;
    return LEASED(function, config_threads(config), stream,
                  cudaapi_real.cuLaunchKernelEx(config, function, values, extra));
}

API cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
{
    CUstream stream = config && config->hStream ? config->hStream : CU_STREAM_PER_THREAD;
    return LEASED(function, config_threads(config), stream,
                  cudaapi_real.cuLaunchKernelEx_ptsz(config, function, values, extra));
}

API cuLaunchCooperativeKernel(SHAPE)
{
    return LEASED(function, SHAPE_THREADS, stream, cudaapi_real.cuLaunchCooperativeKernel(SHAPED));
}

API cuLaunchCooperativeKernel_ptsz(SHAPE)
{
    return LEASED(function, SHAPE_THREADS, PER_THREAD(stream), cudaapi_real.cuLaunchCooperativeKernel_ptsz(SHAPED));
}

/* Needs the lease of every GPU it runs on. Leases are always taken in the page's order, so two tenants that want the
 * same GPUs cannot deadlock. */
API cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *parts, unsigned count, unsigned flags)
{
    int part_of[MG_PAGE_GPUS];
    struct lease_work work[MG_PAGE_GPUS];
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        part_of[gpu] = -1;
    for (unsigned at = 0; parts && at < count; at++) {
        int gpu = stream_gpu(parts[at].hStream);
        if (gpu >= 0)
            part_of[gpu] = (int)at;
    }
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++) {
        if (part_of[gpu] < 0)
            continue;
        const CUDA_LAUNCH_PARAMS *part = &parts[part_of[gpu]];
        uint64_t block = (uint64_t)part->blockDimX * part->blockDimY * part->blockDimZ;
        work[gpu].bytes = 0;
        work[gpu].key = pace_key(part->function, THREADS(part->gridDimX, part->gridDimY, part->gridDimZ, block));
        lease_enter(gpu, &work[gpu]);
    }
    CUresult status = cudaapi_real.cuLaunchCooperativeKernelMultiDevice(parts, count, flags);
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        if (part_of[gpu] >= 0)
            lease_leave(gpu, &work[gpu], parts[part_of[gpu]].hStream, status == CUDA_SUCCESS);
    return status;
}

API cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    return LEASED(graph, 1, stream, cudaapi_real.cuGraphLaunch(graph, stream));
}

API cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
    return LEASED(graph, 1, PER_THREAD(stream), cudaapi_real.cuGraphLaunch_ptsz(graph, stream));
}

/* ---- launches as before CUDA 4 ---- */
API cuLaunch(CUfunction function)
{
    return LEASED(function, 1, 0, cudaapi_real.cuLaunch(function));
}

API cuLaunchGrid(CUfunction function, int width, int height)
{
    return LEASED(function, (uint64_t)width * (unsigned)height, 0, cudaapi_real.cuLaunchGrid(function, width, height));
}

API cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    return LEASED(function, (uint64_t)width * (unsigned)height, stream,
                  cudaapi_real.cuLaunchGridAsync(function, width, height, stream));
}
