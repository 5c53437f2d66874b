/* Launches of every kind wait for the lease. */
#include "enforce.h"
#include "lease.h"

/* The work's key is what tells its duration apart from others': the function or the graph. */
#define LEASED(key, stream, call)                                                  \
    ({                                                                             \
        int gpu = stream_gpu(stream);                                                  \
        if (gpu >= 0)                                                              \
            lease_enter((unsigned)gpu, key, 0);                                    \
        CUresult answer = (call);                                                  \
        if (gpu >= 0)                                                              \
            lease_leave((unsigned)gpu, key, 0, stream, answer == CUDA_SUCCESS);    \
        answer;                                                                    \
    })
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

#define SHAPE CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
              unsigned shared, CUstream stream, void **values
#define SHAPED function, gx, gy, gz, bx, by, bz, shared, stream, values

API cuLaunchKernel(SHAPE, void **extra)
{
    return LEASED(function, stream, cudaapi_real.cuLaunchKernel(SHAPED, extra));
}

API cuLaunchKernel_ptsz(SHAPE, void **extra)
{
    return LEASED(function, PER_THREAD(stream), cudaapi_real.cuLaunchKernel_ptsz(SHAPED, extra));
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
{
    CUstream stream = config ? config->hStream : 0;
    return LEASED(function, stream, cudaapi_real.cuLaunchKernelEx(config, function, values, extra));
}

API cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
{
    CUstream stream = config && config->hStream ? config->hStream : CU_STREAM_PER_THREAD;
    return LEASED(function, stream, cudaapi_real.cuLaunchKernelEx_ptsz(config, function, values, extra));
}

API cuLaunchCooperativeKernel(SHAPE)
{
    return LEASED(function, stream, cudaapi_real.cuLaunchCooperativeKernel(SHAPED));
}

API cuLaunchCooperativeKernel_ptsz(SHAPE)
{
    return LEASED(function, PER_THREAD(stream), cudaapi_real.cuLaunchCooperativeKernel_ptsz(SHAPED));
}

/* Needs the lease of every card it runs on. Always in the order of the page, so that two tenants that want the same
 * cards do not wait for each other. */
API cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *parts, unsigned count, unsigned flags)
{
    int part_of[MG_PAGE_GPUS];
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        part_of[gpu] = -1;
    for (unsigned at = 0; parts && at < count; at++) {
        int gpu = stream_gpu(parts[at].hStream);
        if (gpu >= 0)
            part_of[gpu] = (int)at;
    }
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        if (part_of[gpu] >= 0)
            lease_enter(gpu, parts[part_of[gpu]].function, 0);
    CUresult status = cudaapi_real.cuLaunchCooperativeKernelMultiDevice(parts, count, flags);
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        if (part_of[gpu] >= 0)
            lease_leave(gpu, parts[part_of[gpu]].function, 0, parts[part_of[gpu]].hStream, status == CUDA_SUCCESS);
    return status;
}

API cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    return LEASED(graph, stream, cudaapi_real.cuGraphLaunch(graph, stream));
}

API cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
    return LEASED(graph, PER_THREAD(stream), cudaapi_real.cuGraphLaunch_ptsz(graph, stream));
}

/* ---- as launches were before CUDA 4 ---- */
API cuLaunch(CUfunction function)
{
    return LEASED(function, 0, cudaapi_real.cuLaunch(function));
}

API cuLaunchGrid(CUfunction function, int width, int height)
{
    return LEASED(function, 0, cudaapi_real.cuLaunchGrid(function, width, height));
}

API cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    return LEASED(function, stream, cudaapi_real.cuLaunchGridAsync(function, width, height, stream));
}
