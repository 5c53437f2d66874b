/* Contexts take memory before anything is allocated in them, and give all of theirs back when they end.
 *
 * How much a context takes depends on card and driver; on a card that others use at the same time a process cannot
 * measure it. The agent can, once per card, and writes it into the limits page: every context is charged that. */
#include "enforce.h"
#include "lease.h"
#include <pthread.h>

static pthread_mutex_t primaries = PTHREAD_MUTEX_INITIALIZER;

void contexts_in_child(void) { pthread_mutex_init(&primaries, 0); }

static CUresult context_begin(struct charge *charge, const char *symbol, CUdevice device)
{
    int gpu = device_gpu(device);
    uint64_t bytes = gpu < 0 ? 0 : __atomic_load_n(&tenant_limits->gpus[gpu].context_bytes, __ATOMIC_RELAXED);
    return charge_begin_on(charge, symbol, gpu, bytes);
}

static CUresult context_end(struct charge charge, CUresult status, const CUcontext *made)
{
    if (status || charge.gpu < 0 || !charge.bytes)
        return charge_end(charge, status, HOLDING_CONTEXT, 0);
    ledger_put((struct holding){.kind = HOLDING_CONTEXT, .gpu = (unsigned)charge.gpu, .handle = (uintptr_t)*made,
                                .bytes = charge.bytes, .context = *made});
    return CUDA_SUCCESS;
}

API cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuCtxCreate", device);
    return status ? status : context_end(charge, cudaapi_real.cuCtxCreate_v2(made, flags, device), made);
}

API cuCtxCreate(CUcontext *made, unsigned flags, CUdevice device)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuCtxCreate", device);
    return status ? status : context_end(charge, cudaapi_real.cuCtxCreate(made, flags, device), made);
}

API cuCtxCreate_v3(CUcontext *made, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuCtxCreate", device);
    return status ? status
                  : context_end(charge, cudaapi_real.cuCtxCreate_v3(made, affinity, count, flags, device), made);
}

API cuCtxCreate_v4(CUcontext *made, CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuCtxCreate", device);
    return status ? status : context_end(charge, cudaapi_real.cuCtxCreate_v4(made, parameters, flags, device), made);
}

API cuCtxDestroy_v2(CUcontext context)
{
    CUresult status = cudaapi_real.cuCtxDestroy_v2(context);
    if (!status)
        ledger_end(context);
    return status;
}

API cuCtxDestroy(CUcontext context)
{
    CUresult status = cudaapi_real.cuCtxDestroy(context);
    if (!status)
        ledger_end(context);
    return status;
}

/* The last user that detaches ends the context. */
API cuCtxDetach(CUcontext context)
{
    unsigned release;
    CUresult status = cudaapi_real.cuCtxDetach(context);
    if (!status && cudaapi_real.cuCtxGetApiVersion(context, &release))
        ledger_end(context);
    return status;
}

/* ---- primary contexts: one per card, made when first wanted ---- */
static bool is_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return cudaapi_real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

static CUresult primary_retain(CUcontext *made, CUdevice device)
{
    struct charge charge;
    struct holding held;
    bool known = ledger_take(HOLDING_PRIMARY, (uintptr_t)device, &held);
    if (known) {
        ledger_put(held);
        return cudaapi_real.cuDevicePrimaryCtxRetain(made, device);
    }
    CUresult status = context_begin(&charge, "cuDevicePrimaryCtxRetain", device);
    if (status)
        return status;
    status = cudaapi_real.cuDevicePrimaryCtxRetain(made, device);
    if (status || charge.gpu < 0 || !charge.bytes)
        return charge_end(charge, status, HOLDING_PRIMARY, 0);
    ledger_put((struct holding){.kind = HOLDING_PRIMARY, .gpu = (unsigned)charge.gpu, .handle = (uintptr_t)device,
                                .bytes = charge.bytes, .context = *made});
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
    pthread_mutex_lock(&primaries);
    CUresult status = primary_retain(made, device);
    pthread_mutex_unlock(&primaries);
    return status;
}

/* After the driver's answer: whatever ended the primary context, all of it is given back. */
static CUresult primary_ended(CUresult status, CUdevice device)
{
    struct holding held;
    if (!status && !is_active(device) && ledger_take(HOLDING_PRIMARY, (uintptr_t)device, &held)) {
        account_give_back(held.gpu, held.bytes);
        ledger_end(held.context);
        pools_refresh();
    }
    pthread_mutex_unlock(&primaries);
    return status;
}

#define PRIMARY_END(symbol)                                                        \
    API symbol(CUdevice device)                                                    \
    {                                                                              \
        pthread_mutex_lock(&primaries);                                            \
        return primary_ended(cudaapi_real.symbol(device), device);                 \
    }
PRIMARY_END(cuDevicePrimaryCtxRelease)
PRIMARY_END(cuDevicePrimaryCtxRelease_v2)
PRIMARY_END(cuDevicePrimaryCtxReset)
PRIMARY_END(cuDevicePrimaryCtxReset_v2)

/* ---- synchronising ---- */
API cuCtxSynchronize(void)
{
    CUresult status = cudaapi_real.cuCtxSynchronize();
    int gpu = current_gpu();
    if (gpu >= 0)
        lease_idle((unsigned)gpu);
    pools_refresh();
    return status;
}
