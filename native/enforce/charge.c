/* An allocation, from the request to the holding, and the message for a refused one. */
#include "enforce.h"
#include <time.h>

/* One line per refusal, but a program that retries in a loop must not fill the log. */
static void say_refused(unsigned gpu, const char *symbol, uint64_t bytes)
{
    static _Atomic int64_t last = -1;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (last == now.tv_sec)
        return;
    last = now.tv_sec;
    say("out of memory: %s asks for %llu bytes of %s; the limit is %llu and %llu are in use by this tenant", symbol,
        (unsigned long long)bytes, tenant_limits->gpus[gpu].uuid, (unsigned long long)account_limit(gpu),
        (unsigned long long)account_used(gpu));
}

CUresult charge_refused(const char *symbol, unsigned gpu, uint64_t bytes)
{
    account_refused(gpu);
    say_refused(gpu, symbol, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_begin_on(struct charge *charge, const char *symbol, int gpu, uint64_t bytes)
{
    *charge = (struct charge){gpu, bytes};
    if (gpu < 0 || !charge->bytes)
        return CUDA_SUCCESS; /* invalid: the driver refuses it */
    if (granules_change((unsigned)gpu, 0, bytes))
        return CUDA_SUCCESS;
    /* First free what the memory pools keep unused. */
    if (pools_trim((unsigned)gpu) && granules_change((unsigned)gpu, 0, bytes))
        return CUDA_SUCCESS;
    return charge_refused(symbol, (unsigned)gpu, charge->bytes);
}

CUresult charge_begin(struct charge *charge, const char *symbol, uint64_t bytes)
{
    return charge_begin_on(charge, symbol, current_gpu(), bytes);
}

CUresult charge_end(struct charge charge, CUresult status, enum holding_kind kind, uintptr_t handle)
{
    struct holding holding = {.kind = kind, .gpu = (unsigned)charge.gpu, .handle = handle, .bytes = charge.bytes};
    if (charge.gpu < 0 || !charge.bytes)
        return status;
    if (status) {
        granules_give_back(holding.gpu, holding.bytes);
        return status;
    }
    cudaapi_real.cuCtxGetCurrent(&holding.context);
    ledger_put(holding);
    return CUDA_SUCCESS;
}
