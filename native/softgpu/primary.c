/* Primary contexts: one per GPU, shared by all callers that retain it. */
#include "softgpu.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *primaries[MOST_CARDS];
static unsigned primary_flags[MOST_CARDS];

API cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!primaries[device]) {
        status = context_new(card, primary_flags[device], &primaries[device]);
        if (!status)
            primaries[device]->primary = true;
    }
    if (!status) {
        primaries[device]->references++;
        *handle = primaries[device]->handle;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static CUresult primary_end(CUdevice device, bool reset)
{
    struct card *card;
    struct context *ended = 0;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    struct context *context = primaries[device];
    if (!context && !reset)
        status = CUDA_ERROR_INVALID_CONTEXT;
    else if (context && (reset || !--context->references)) {
        ended = context;
        primaries[device] = 0;
    }
    pthread_mutex_unlock(&lock);
    if (ended)
        context_end(ended);
    return status;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return primary_end(device, false);
}

API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return primary_end(device, true);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = primary_flags[device];
    *active = primaries[device] != 0;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (flags & ~CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    primary_flags[device] = flags;
    return CUDA_SUCCESS;
}
