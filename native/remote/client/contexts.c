/* Each thread's stack of contexts is kept here. The worker learns of a change with the next message that it matters to.
 */
#include "client.h"
#include <pthread.h>

enum { KNOWN = 64 };
static struct {
    pthread_mutex_t lock;
    struct {
        CUcontext context;
        CUdevice device;
    } row[KNOWN];
} devices = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* a context's device never changes */

CUcontext context_current(void)
{
    struct lane *lane = link_is_up() ? link_lane() : NULL;
    return lane && lane->depth ? lane->contexts[lane->depth - 1] : NULL;
}

API cuCtxGetCurrent(CUcontext *context)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = context_current();
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context)
{
    struct lane *lane = facts ? link_lane() : NULL;
    if (!lane)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (link_is_strict() && context) {
        CUresult status = ask_cuCtxSetCurrent(context);
        if (status)
            return status;
        lane->told = context;
    }
    if (!lane->depth)
        lane->depth = 1;
    lane->contexts[lane->depth - 1] = context;
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext context)
{
    struct lane *lane = facts ? link_lane() : NULL;
    if (!lane)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || lane->depth == CONTEXTS_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    lane->contexts[lane->depth++] = context;
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *context)
{
    struct lane *lane = facts ? link_lane() : NULL;
    if (!lane)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!lane->depth || !lane->contexts[lane->depth - 1])
        return CUDA_ERROR_INVALID_CONTEXT;
    lane->depth--;
    if (context)
        *context = lane->contexts[lane->depth];
    return CUDA_SUCCESS;
}

API cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    CUresult status = facts_device(device);
    if (status)
        return status;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    struct lane *lane = link_lane();
    if (!lane || lane->depth == CONTEXTS_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    status = ask_cuCtxCreate_v2(context, flags, device);
    if (!status)
        lane->contexts[lane->depth++] = lane->told = *context;
    return status;
}

API cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device)
{
    if (parameters && (parameters->numExecAffinityParams || parameters->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(context, flags, device);
}

API cuCtxDestroy_v2(CUcontext context)
{
    struct lane *lane = facts ? link_lane() : NULL;
    if (!lane)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult status = ask_cuCtxDestroy_v2(context);
    if (status)
        return status;
    slabs_forget(context);
    if (lane->depth && lane->contexts[lane->depth - 1] == context)
        lane->depth--;
    lane->told = (void *)-1; /* whatever it is now, it will be told */
    return status;
}

API cuCtxGetDevice(CUdevice *device)
{
    CUcontext current = context_current();
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    size_t at = handle_number(current) / HANDLE_STEP % KNOWN;
    pthread_mutex_lock(&devices.lock);
    bool known = devices.row[at].context == current;
    if (known)
        *device = devices.row[at].device;
    pthread_mutex_unlock(&devices.lock);
    if (known)
        return CUDA_SUCCESS;
    CUresult status = ask_cuCtxGetDevice(device);
    if (!status) {
        pthread_mutex_lock(&devices.lock);
        devices.row[at].context = current;
        devices.row[at].device = *device;
        pthread_mutex_unlock(&devices.lock);
    }
    return status;
}
