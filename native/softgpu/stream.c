/* Streams and events of the API. */
#include "softgpu.h"
#include <stdlib.h>

struct event {
    CUevent handle;
    struct context *context;
    unsigned flags;
    pthread_mutex_t lock;
    struct mark *mark; /* its last recorded position */
};

CUresult stream_find(CUstream handle, struct stream **stream)
{
    struct context *context;
    if (!handle)
        handle = cudaapi_null_stream;
    bool special = handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    CUresult status = special ? context_current(&context) : sg_ready();
    if (status)
        return status;
    if (handle == CU_STREAM_PER_THREAD)
        return stream_of_thread(context, stream);
    *stream = special ? context->legacy : handle_get(HANDLE_STREAM, handle);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuStreamCreateWithPriority(CUstream *made, unsigned flags, int priority)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (!made || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream = stream_new(context, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
    if (!stream || !stream->handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = stream->handle;
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *made, unsigned flags)
{
    return cuStreamCreateWithPriority(made, flags, 0);
}

API cuStreamDestroy_v2(CUstream handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    struct stream *stream = handle_get(HANDLE_STREAM, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_close(stream);
    return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream handle)
{
    struct stream *stream;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    status = capture_forbids(stream);
    if (status)
        return status;
    if (stream == stream->context->legacy)
        return context_drain(stream->context, true);
    return stream_wait(stream, stream_submitted(stream));
}

API cuStreamQuery(CUstream handle)
{
    struct stream *stream;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    status = capture_forbids(stream);
    if (!status)
        status = context_status(stream->context);
    if (status)
        return status;
    uint64_t submitted = stream_submitted(stream);
    bool all = stream == stream->context->legacy;
    bool busy = all ? context_busy(stream->context, true) : stream_completed(stream) < submitted;
    return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

API cuStreamGetFlags(CUstream handle, unsigned *flags)
{
    struct stream *stream;
    ANSWER(stream_find(handle, &stream), flags, stream->flags);
}

API cuStreamGetPriority(CUstream handle, int *priority)
{
    struct stream *stream;
    ANSWER(stream_find(handle, &stream), priority, stream->priority);
}

API cuStreamGetId(CUstream handle, unsigned long long *id)
{
    struct stream *stream;
    ANSWER(stream_find(handle, &stream), id, stream->id);
}

API cuStreamGetCtx(CUstream handle, CUcontext *made)
{
    struct stream *stream;
    ANSWER(stream_find(handle, &stream), made, stream->context->handle);
}

API cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    struct stream *stream;
    ANSWER(stream_find(handle, &stream), device, stream->context->card->ordinal);
}

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument)
{
    struct stream *stream;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    struct work *work = work_new(WORK_HOST, 0);
    if (work) {
        work->host.function = function;
        work->host.argument = argument;
    }
    return stream_submit(stream, work);
}

API cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *argument, unsigned flags)
{
    struct stream *stream;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    if (!function || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct work *work = work_new(WORK_CALLBACK, 0);
    if (work) {
        work->callback.function = function;
        work->callback.argument = argument;
        work->callback.stream = handle;
    }
    return stream_submit(stream, work);
}

/* ---- events ---- */
API cuEventCreate(CUevent *made, unsigned flags)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    if (flags & CU_EVENT_INTERPROCESS)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!made || flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = calloc(1, sizeof *event);
    if (event)
        event->handle = handle_new(HANDLE_EVENT, event);
    if (!event || !event->handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->flags = flags;
    event->context = context;
    pthread_mutex_init(&event->lock, 0);
    *made = event->handle;
    return CUDA_SUCCESS;
}

static CUresult find_event(CUevent handle, struct event **event)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    *event = handle_get(HANDLE_EVENT, handle);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The event's position, retained for the caller; null if it was never recorded. */
static struct mark *mark_of(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    struct mark *mark = event->mark;
    if (mark)
        mark_keep(mark);
    pthread_mutex_unlock(&event->lock);
    return mark;
}

static CUresult find_mark(CUevent handle, struct mark **mark)
{
    struct event *event;
    CUresult status = find_event(handle, &event);
    if (!status)
        *mark = mark_of(event);
    return status;
}

API cuEventDestroy_v2(CUevent handle)
{
    struct event *event;
    CUresult status = find_event(handle, &event);
    if (status)
        return status;
    handle_drop(HANDLE_EVENT, handle);
    mark_drop(event->mark);
    free(event);
    return CUDA_SUCCESS;
}

CUresult event_record(CUevent handle, struct stream *stream)
{
    struct event *event;
    struct mark *mark, *before;
    CUresult status = find_event(handle, &event);
    if (!status && event->context != stream->context)
        status = CUDA_ERROR_INVALID_HANDLE;
    if (!status)
        status = stream_submit_mark(stream, &mark);
    if (status)
        return status;
    pthread_mutex_lock(&event->lock);
    before = event->mark;
    event->mark = mark;
    pthread_mutex_unlock(&event->lock);
    mark_drop(before);
    return CUDA_SUCCESS;
}

API cuEventRecord(CUevent handle, CUstream on)
{
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    return status ? status : event_record(handle, stream);
}

API cuEventRecordWithFlags(CUevent handle, CUstream on, unsigned flags)
{
    return flags ? CUDA_ERROR_NOT_SUPPORTED : cuEventRecord(handle, on);
}

API cuEventQuery(CUevent handle)
{
    struct mark *mark;
    CUresult status = find_mark(handle, &mark);
    if (status)
        return status;
    if (!mark)
        return CUDA_SUCCESS;
    status = mark->capture ? CUDA_ERROR_CAPTURED_EVENT : context_status(mark->stream->context);
    if (!status && !mark_reached(mark))
        status = CUDA_ERROR_NOT_READY;
    mark_drop(mark);
    return status;
}

API cuEventSynchronize(CUevent handle)
{
    struct mark *mark;
    CUresult status = find_mark(handle, &mark);
    if (status)
        return status;
    if (mark)
        status = mark->capture ? CUDA_ERROR_CAPTURED_EVENT : stream_wait(mark->stream, mark->sequence);
    mark_drop(mark);
    return status;
}

CUresult event_wait(CUevent handle, struct stream *stream)
{
    struct mark *mark;
    CUresult status = find_mark(handle, &mark);
    if (status)
        return status;
    if (!mark)
        return CUDA_SUCCESS;
    if (mark->capture || stream->capture) {
        status = capture_wait(stream, mark);
        mark_drop(mark);
        return status;
    }
    struct work *work = work_new(WORK_WAIT, 0);
    if (work)
        work->mark = mark;
    status = stream_submit(stream, work);
    if (status)
        mark_drop(mark);
    return status;
}

API cuStreamWaitEvent(CUstream on, CUevent handle, unsigned flags)
{
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    if (!status && flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        status = CUDA_ERROR_INVALID_VALUE;
    return status ? status : event_wait(handle, stream);
}

API cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    struct event *first, *second;
    CUresult status = find_event(start, &first);
    if (!status)
        status = find_event(end, &second);
    if (status)
        return status;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    struct mark *from = mark_of(first), *to = mark_of(second);
    if ((from && from->capture) || (to && to->capture))
        status = CUDA_ERROR_CAPTURED_EVENT;
    else if (!from || !to || (first->flags | second->flags) & CU_EVENT_DISABLE_TIMING)
        status = CUDA_ERROR_INVALID_HANDLE;
    else if (!mark_reached(from) || !mark_reached(to))
        status = CUDA_ERROR_NOT_READY;
    else
        *milliseconds = (float)((double)((int64_t)(to->nanoseconds - from->nanoseconds)) * 1e-6);
    mark_drop(from);
    mark_drop(to);
    return status;
}

API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
