/* Contexts take memory before anything is allocated in them, and give it back when they end.
 *
 * How much a context takes depends on the GPU model and the driver. A process cannot measure it on a GPU that other
 * processes use at the same time. The agent measures it once per GPU and writes it into the limits page; every context
 * is charged that amount. */
#include "enforce.h"
#include "lease.h"
#include <pthread.h>

static pthread_mutex_t primaries = PTHREAD_MUTEX_INITIALIZER;

void contexts_in_child(void)
{
    pthread_mutex_init(&primaries, 0);
}

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
    ledger_put((struct holding){.kind = HOLDING_CONTEXT,
                                .gpu = (unsigned)charge.gpu,
                                .handle = (uintptr_t)*made,
                                .bytes = charge.bytes,
                                .context = *made});
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

/* ---- contexts that share memory with graphics ---- */
API cuGLCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuGLCtxCreate", device);
    return status ? status : context_end(charge, cudaapi_real.cuGLCtxCreate_v2(made, flags, device), made);
}

API cuGLCtxCreate(CUcontext *made, unsigned flags, CUdevice device)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuGLCtxCreate", device);
    return status ? status : context_end(charge, cudaapi_real.cuGLCtxCreate(made, flags, device), made);
}

API cuVDPAUCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device, VdpDevice video, VdpGetProcAddress *look_up)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuVDPAUCtxCreate", device);
    return status ? status
                  : context_end(charge, cudaapi_real.cuVDPAUCtxCreate_v2(made, flags, device, video, look_up), made);
}

API cuVDPAUCtxCreate(CUcontext *made, unsigned flags, CUdevice device, VdpDevice video, VdpGetProcAddress *look_up)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuVDPAUCtxCreate", device);
    return status ? status
                  : context_end(charge, cudaapi_real.cuVDPAUCtxCreate(made, flags, device, video, look_up), made);
}

/* ---- the end of a context ---- */
API cuCtxDestroy_v2(CUcontext context)
{
    lease_context_ends(context);
    devices_context_ends();
    CUresult status = cudaapi_real.cuCtxDestroy_v2(context);
    if (!status)
        ledger_end(context);
    return status;
}

API cuCtxDestroy(CUcontext context)
{
    lease_context_ends(context);
    devices_context_ends();
    CUresult status = cudaapi_real.cuCtxDestroy(context);
    if (!status)
        ledger_end(context);
    return status;
}

/* The context ends when its last user detaches. */
API cuCtxDetach(CUcontext context)
{
    unsigned release;
    lease_context_ends(context);
    devices_context_ends();
    CUresult status = cudaapi_real.cuCtxDetach(context);
    if (!status && cudaapi_real.cuCtxGetApiVersion(context, &release))
        ledger_end(context);
    return status;
}

/* ---- primary contexts: one per GPU, created on first use ---- */
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
    ledger_put((struct holding){.kind = HOLDING_PRIMARY,
                                .gpu = (unsigned)charge.gpu,
                                .handle = (uintptr_t)device,
                                .bytes = charge.bytes,
                                .context = *made});
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
    pthread_mutex_lock(&primaries);
    CUresult status = primary_retain(made, device);
    pthread_mutex_unlock(&primaries);
    return status;
}

/* Runs after the driver's call: if the primary context has ended, for whatever reason, all its memory is given back. */
static CUresult primary_ended(CUresult status, CUdevice device)
{
    struct holding held;
    if (!status && !is_active(device) && ledger_take(HOLDING_PRIMARY, (uintptr_t)device, &held)) {
        granules_give_back(held.gpu, held.bytes);
        ledger_end(held.context);
        pools_refresh();
    }
    pthread_mutex_unlock(&primaries);
    return status;
}

/* Runs before the driver's call, after which events of the context may not be used any more. */
static void primary_ends(CUdevice device)
{
    int gpu = device_gpu(device);
    if (gpu >= 0)
        lease_gpu_ends((unsigned)gpu);
    devices_context_ends();
}

#define PRIMARY_END(symbol)                                                                                            \
    API symbol(CUdevice device)                                                                                        \
    {                                                                                                                  \
        pthread_mutex_lock(&primaries);                                                                                \
        primary_ends(device);                                                                                          \
        return primary_ended(cudaapi_real.symbol(device), device);                                                     \
    }
PRIMARY_END(cuDevicePrimaryCtxRelease)
PRIMARY_END(cuDevicePrimaryCtxRelease_v2)
PRIMARY_END(cuDevicePrimaryCtxReset)
PRIMARY_END(cuDevicePrimaryCtxReset_v2)

/* A green context is a part of the primary context and creates it if necessary. */
API cuGreenCtxCreate(CUgreenCtx *made, CUdevResourceDesc wanted, CUdevice device, unsigned flags)
{
    struct charge charge;
    CUresult status = context_begin(&charge, "cuGreenCtxCreate", device);
    if (status)
        return status;
    status = cudaapi_real.cuGreenCtxCreate(made, wanted, device, flags);
    if (status || charge.gpu < 0 || !charge.bytes)
        return charge_end(charge, status, HOLDING_CONTEXT, 0);
    ledger_put((struct holding){
        .kind = HOLDING_CONTEXT, .gpu = (unsigned)charge.gpu, .handle = (uintptr_t)*made, .bytes = charge.bytes});
    return CUDA_SUCCESS;
}

API cuGreenCtxDestroy(CUgreenCtx context)
{
    CUcontext as_context;
    if (context && cudaapi_real.cuCtxFromGreenCtx(&as_context, context) == CUDA_SUCCESS)
        lease_context_ends(as_context);
    devices_context_ends();
    return GIVE_BACK(HOLDING_CONTEXT, context, cudaapi_real.cuGreenCtxDestroy(context));
}

/* ---- memory that a context reserves for its kernels ---- */
static uint64_t attribute(CUdevice_attribute which)
{
    CUdevice device;
    int value = 0;
    if (cudaapi_real.cuCtxGetDevice(&device) || cudaapi_real.cuDeviceGetAttribute(&value, which, device))
        return 0;
    return (uint64_t)value;
}

/* Only the bytes beyond the driver's defaults, which are part of what a context takes. */
static uint64_t set_aside(CUlimit which, uint64_t value)
{
    static const uint64_t usual[] = {
        [CU_LIMIT_STACK_SIZE] = 1 << 10, [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20, [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20};
    if (which > CU_LIMIT_MALLOC_HEAP_SIZE || value <= usual[which])
        return 0;
    uint64_t more = value - usual[which], threads = 1, bytes;
    if (which == CU_LIMIT_STACK_SIZE) /* one stack for each thread that can be resident */
        threads = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
                  * attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    return __builtin_mul_overflow(more, threads, &bytes) ? UINT64_MAX : bytes;
}

API cuCtxSetLimit(CUlimit which, size_t value)
{
    struct holding before = {0};
    CUcontext context = 0;
    uint64_t wanted = set_aside(which, value);
    cudaapi_real.cuCtxGetCurrent(&context);
    enum holding_kind kind = (enum holding_kind)(HOLDING_LIMITS + (int)which);
    bool known = ledger_take(kind, (uintptr_t)context, &before);
    int gpu = known ? (int)before.gpu : current_gpu();
    CUresult status = CUDA_SUCCESS;
    if (gpu >= 0 && !granules_change((unsigned)gpu, before.bytes, wanted))
        status = charge_refused("cuCtxSetLimit", (unsigned)gpu, wanted);
    else {
        status = cudaapi_real.cuCtxSetLimit(which, value);
        if (status && gpu >= 0) /* less than before fits; if others took the room meanwhile, less is charged */
            granules_change((unsigned)gpu, wanted, before.bytes);
    }
    if (status) {
        if (known)
            ledger_put(before);
        return status;
    }
    if (gpu >= 0 && wanted)
        ledger_put((struct holding){
            .kind = kind, .gpu = (unsigned)gpu, .handle = (uintptr_t)context, .bytes = wanted, .context = context});
    return CUDA_SUCCESS;
}

/* ---- synchronization ---- */
API cuCtxSynchronize(void)
{
    CUresult status = cudaapi_real.cuCtxSynchronize();
    int gpu = current_gpu();
    if (gpu >= 0)
        lease_idle((unsigned)gpu);
    pools_refresh();
    return status;
}

#define SYNCHRONISE(symbol, kind)                                                                                      \
    API symbol(kind what)                                                                                              \
    {                                                                                                                  \
        CUresult status = cudaapi_real.symbol(what);                                                                   \
        pools_refresh();                                                                                               \
        return status;                                                                                                 \
    }
SYNCHRONISE(cuCtxSynchronize_v2, CUcontext)
SYNCHRONISE(cuStreamSynchronize, CUstream)
SYNCHRONISE(cuStreamSynchronize_ptsz, CUstream)
SYNCHRONISE(cuEventSynchronize, CUevent)
