/* Contexts: each takes memory on its GPU, and has its own streams and sticky error. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>

enum { STACK_DEPTH = 256 };
static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local int depth;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *all;

CUresult context_new(struct card *card, unsigned flags, struct context **made)
{
    uint32_t slot = 0;
    size_t room = sizeof slot;
    CUresult status = card_call(card, WIRE_CONTEXT_OPEN, 0, 0, &slot, &room, 0);
    if (status)
        return status;
    struct context *context = calloc(1, sizeof *context);
    if (context) {
        context->card = card;
        context->flags = flags;
        context->slot = slot;
        context->faults = __atomic_load_n(&card->activity->faults, __ATOMIC_ACQUIRE);
        context->id = next_id();
        pthread_mutex_init(&context->lock, 0);
        pthread_mutex_init(&context->account, 0);
        condition_init(&context->done);
        context->legacy = stream_new(context, CU_STREAM_DEFAULT, 0);
        context->handle = handle_new(HANDLE_CONTEXT, context);
    }
    if (!context || !context->handle || !context->legacy) {
        card_call(card, WIRE_CONTEXT_CLOSE, &slot, sizeof slot, 0, 0, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&all_lock);
    context->next = all;
    all = context;
    pthread_mutex_unlock(&all_lock);
    *made = context;
    return CUDA_SUCCESS;
}

/* The structure is never freed: a worker may still read it, and it is small compared with what the context held. */
void context_end(struct context *context)
{
    context_drain(context, false);
    handle_drop(HANDLE_CONTEXT, context->handle);
    pthread_mutex_lock(&all_lock);
    for (struct context **at = &all; *at; at = &(*at)->next)
        if (*at == context) {
            *at = context->next;
            break;
        }
    pthread_mutex_unlock(&all_lock);
    memory_free_context(context);
    streams_close(context);
    card_call(context->card, WIRE_CONTEXT_CLOSE, &context->slot, sizeof context->slot, 0, 0, 0);
}

/* ---- all contexts ---- */
void contexts_drain(void)
{
    pthread_mutex_lock(&all_lock);
    for (struct context *context = all; context; context = context->next)
        context_drain(context, false);
    pthread_mutex_unlock(&all_lock);
}

bool contexts_idle(void)
{
    bool quiet = true;
    pthread_mutex_lock(&all_lock);
    for (struct context *context = all; context; context = context->next)
        quiet &= !context_busy(context, false);
    pthread_mutex_unlock(&all_lock);
    return quiet;
}

static void close_until(struct card *card, struct card *target, const struct context *last)
{
    for (struct context *context = all; context != last; context = context->next)
        if (context->card == card)
            card_call(target, WIRE_CONTEXT_CLOSE, &context->slot, sizeof context->slot, 0, 0, 0);
}

void contexts_close(struct card *card)
{
    pthread_mutex_lock(&all_lock);
    close_until(card, card, 0);
    pthread_mutex_unlock(&all_lock);
}

CUresult contexts_open(struct card *card, struct card *target)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&all_lock);
    for (struct context *context = all; context && !status; context = context->next) {
        size_t room = sizeof context->slot;
        if (context->card != card)
            continue;
        status = card_call(target, WIRE_CONTEXT_OPEN, 0, 0, &context->slot, &room, 0);
        if (status)
            close_until(card, target, context);
        context->faults = __atomic_load_n(&target->activity->faults, __ATOMIC_ACQUIRE);
        context->ended = 0;
    }
    pthread_mutex_unlock(&all_lock);
    return status;
}

static struct context *top(void)
{
    return depth ? handle_get(HANDLE_CONTEXT, stack[depth - 1]) : 0;
}

CUresult context_current(struct context **context)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    *context = top();
    if (*context)
        return CUDA_SUCCESS;
    return depth && stack[depth - 1] ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

/* The daemon also reports a kernel's fault, as an XID that means "application error". */
static void report(struct card *card, CUresult failure)
{
    uint32_t xid = failure == CUDA_ERROR_ILLEGAL_ADDRESS ? 31 : 13;
    card_call(card, WIRE_XID, &xid, sizeof xid, 0, 0, 0);
}

void context_fail(struct context *context, CUresult failure)
{
    int none = CUDA_SUCCESS;
    if (atomic_compare_exchange_strong(&context->failure, &none, (int)failure))
        report(context->card, failure);
}

CUresult context_status(struct context *context)
{
    const struct activity_page *page = context->card->activity;
    if (atomic_load_explicit(&context->card->lost, memory_order_relaxed)) {
        int none = CUDA_SUCCESS;
        atomic_compare_exchange_strong(&context->failure, &none, CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
    if (__atomic_load_n(&page->faults, __ATOMIC_ACQUIRE) != context->faults) {
        int none = CUDA_SUCCESS;
        atomic_compare_exchange_strong(&context->failure, &none, (int)page->fault);
    }
    return (CUresult)atomic_load(&context->failure);
}

static CUresult push(CUcontext handle)
{
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = handle;
    return CUDA_SUCCESS;
}

API cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device)
{
    struct card *card;
    struct context *context;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!made || flags & ~CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    status = context_new(card, flags, &context);
    if (status)
        return status;
    *made = context->handle;
    return push(context->handle);
}

API cuCtxCreate_v3(CUcontext *made, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)
{
    return affinity || count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : cuCtxCreate_v2(made, flags, device);
}

API cuCtxCreate_v4(CUcontext *made, CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    if (parameters && (parameters->numExecAffinityParams || parameters->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(made, flags, device);
}

API cuCtxDestroy_v2(CUcontext handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    struct context *context = handle_get(HANDLE_CONTEXT, handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_end(context);
    if (depth && stack[depth - 1] == handle)
        depth--;
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!handle) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    if (!handle_get(HANDLE_CONTEXT, handle))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!depth)
        return push(handle);
    stack[depth - 1] = handle;
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *handle)
{
    ANSWER(sg_ready(), handle, depth ? stack[depth - 1] : 0);
}

API cuCtxPushCurrent_v2(CUcontext handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    return handle_get(HANDLE_CONTEXT, handle) ? push(handle) : CUDA_ERROR_INVALID_CONTEXT;
}

API cuCtxPopCurrent_v2(CUcontext *handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (handle)
        *handle = stack[depth];
    return CUDA_SUCCESS;
}

/* The current context if the caller names none. */
static CUresult context_find(CUcontext handle, struct context **context)
{
    CUresult status = handle ? sg_ready() : context_current(context);
    if (status || !handle)
        return status;
    *context = handle_get(HANDLE_CONTEXT, handle);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
    struct context *context;
    ANSWER(context_find(handle, &context), device, context->card->ordinal);
}

API cuCtxGetDevice(CUdevice *device)
{
    return cuCtxGetDevice_v2(device, 0);
}

API cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    struct context *context = handle ? handle_get(HANDLE_CONTEXT, handle) : 0;
    ANSWER(handle && !context ? CUDA_ERROR_CONTEXT_IS_DESTROYED : context_find(handle, &context), id, context->id);
}

API cuCtxGetFlags(unsigned *flags)
{
    struct context *context;
    ANSWER(context_current(&context), flags, context->flags);
}

API cuCtxSetFlags(unsigned flags)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (flags & ~CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(CUcontext handle, unsigned *version)
{
    if (handle && !handle_get(HANDLE_CONTEXT, handle))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize_v2(CUcontext handle)
{
    struct context *context;
    CUresult status = context_find(handle, &context);
    return status ? status : context_drain(context, false);
}

API cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(0);
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    struct context *context, *other = handle_get(HANDLE_CONTEXT, peer);
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (!other)
        return CUDA_ERROR_INVALID_CONTEXT;
    return flags ? CUDA_ERROR_INVALID_VALUE : other->card == context->card ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
