/* Stream capture: submissions to a stream become nodes of a graph instead of work. Other streams join by waiting for an
 * event of a stream that takes part. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>

struct capture {
    unsigned long long id;
    CUgraph graph;
    struct stream *origin;
    CUstreamCaptureMode mode;
    bool invalid, given; /* `given`: the graph is the caller's */
};

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- dependencies of the next node ---- */
static void tips_clear(struct tips *tips)
{
    free(tips->nodes);
    *tips = (struct tips){0};
}

static bool tips_hold(const struct tips *tips, CUgraphNode node)
{
    bool found = false;
    for (size_t at = 0; !found && at < tips->count; at++)
        found = tips->nodes[at] == node;
    return found;
}

static CUresult tips_add(struct tips *tips, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *larger = realloc(tips->nodes, (tips->count + count + 1) * sizeof *larger);
    if (!larger)
        return CUDA_ERROR_OUT_OF_MEMORY;
    tips->nodes = larger;
    for (size_t at = 0; at < count; at++)
        if (!tips_hold(tips, nodes[at]))
            tips->nodes[tips->count++] = nodes[at];
    return CUDA_SUCCESS;
}

static CUresult spoil(struct capture *capture, CUresult status)
{
    capture->invalid = true;
    return status;
}

CUresult capture_work(struct stream *stream, struct work *work)
{
    struct capture *capture = stream->capture;
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (work->kind == WORK_CALLBACK)
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (work->kind == WORK_FREE) { /* a graph may run again and needs its memory, which stays until the context ends */
        free(work);
        return CUDA_SUCCESS;
    }
    CUgraphNode made;
    CUresult status = graph_add_work(capture->graph, stream->tips.nodes, stream->tips.count, work, &made);
    if (status)
        return status;
    free(work);
    stream->tips.count = 0;
    return tips_add(&stream->tips, &made, 1);
}

CUresult capture_mark(struct stream *stream, struct mark *mark)
{
    mark->capture = stream->capture->id;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return tips_add(&mark->tips, stream->tips.nodes, stream->tips.count);
}

CUresult capture_wait(struct stream *stream, struct mark *mark)
{
    struct capture *other = mark->stream->capture;
    if (!mark->capture)
        return spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    if (!other || other->id != mark->capture || (stream->capture && stream->capture != other))
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (stream == stream->context->legacy)
        return spoil(other, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    mark->stream->unjoined = false;
    stream->capture = other;
    stream->unjoined = stream != other->origin;
    return tips_add(&stream->tips, mark->tips.nodes, mark->tips.count);
}

CUresult capture_forbids(struct stream *stream)
{
    return stream->capture ? spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

static bool counts(const struct stream *stream, CUstreamCaptureMode mode)
{
    return !(stream->flags & CU_STREAM_NON_BLOCKING) && mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

static CUresult begin(CUstream handle, CUgraph graph, const CUgraphNode *needs, size_t count, CUstreamCaptureMode mode)
{
    struct stream *stream;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = calloc(1, sizeof *capture);
    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *capture = (struct capture){.id = next_id(), .graph = graph, .origin = stream, .mode = mode, .given = graph != 0};
    if (!graph && (status = cuGraphCreate(&capture->graph, 0))) {
        free(capture);
        return status;
    }
    atomic_fetch_add(&stream->context->captures, counts(stream, mode));
    stream->capture = capture;
    return tips_add(&stream->tips, needs, count);
}

API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    return begin(handle, 0, 0, 0, mode);
}

API cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    (void)edges;
    if (!handle_get(HANDLE_GRAPH, graph) || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    return begin(handle, graph, dependencies, count, mode);
}

/* Release every stream that took part; true if the capturing stream had not waited for one of them. */
static bool release(struct context *context, const struct capture *capture)
{
    bool unjoined = false;
    pthread_mutex_lock(&context->lock);
    for (struct stream *stream = context->streams; stream; stream = stream->next)
        if (stream->capture == capture) {
            unjoined |= stream->unjoined;
            stream->capture = 0;
            tips_clear(&stream->tips);
            stream->unjoined = false;
        }
    pthread_mutex_unlock(&context->lock);
    return unjoined;
}

API cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    struct stream *stream;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    struct capture *capture = stream->capture;
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return spoil(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    bool unjoined = release(stream->context, capture);
    status = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : unjoined       ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                              : CUDA_SUCCESS;
    *graph = status ? 0 : capture->graph;
    if (status && !capture->given)
        cuGraphDestroy(capture->graph);
    atomic_fetch_sub(&stream->context->captures, counts(stream, capture->mode));
    free(capture);
    return status;
}

static CUresult describe(CUstream handle, CUstreamCaptureStatus *state, cuuint64_t *id, CUgraph *graph,
                         const CUgraphNode **dependencies, size_t *count)
{
    struct stream *stream;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    struct capture *capture = stream->capture;
    *state = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
             : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!capture)
        return CUDA_SUCCESS;
    if (id)
        *id = capture->id;
    if (graph)
        *graph = capture->graph;
    if (dependencies)
        *dependencies = stream->tips.nodes;
    if (count)
        *count = stream->tips.count;
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *state)
{
    return describe(handle, state, 0, 0, 0, 0);
}

API cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *state, cuuint64_t *id)
{
    return describe(handle, state, id, 0, 0, 0);
}

API cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *state, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **dependencies, size_t *count)
{
    return describe(handle, state, id, graph, dependencies, count);
}

API cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *state, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
    if (edges)
        *edges = 0;
    return describe(handle, state, id, graph, dependencies, count);
}

API cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                         size_t count, unsigned flags)
{
    struct stream *stream;
    (void)edges;
    CUresult status = stream_find(handle, &stream);
    if (status)
        return status;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if ((count && !dependencies) || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        stream->tips.count = 0;
    return tips_add(&stream->tips, dependencies, count);
}

API cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies, size_t count, unsigned flags)
{
    return cuStreamUpdateCaptureDependencies_v2(handle, dependencies, 0, count, flags);
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
