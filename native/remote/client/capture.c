/* Whether any stream is being captured is known here; which one it is, and what it has so far, the worker knows. */
#include "client.h"
#include <stdlib.h>

static int captures; /* begun, and not ended */

bool is_capturing(void)
{
    return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) > 0;
}

static CUresult begun(CUresult status)
{
    if (!status)
        __atomic_fetch_add(&captures, 1, __ATOMIC_RELEASE);
    return status;
}

API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return begun(ask_cuStreamBeginCapture_v2(stream, mode));
}

API cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    return begun(ask_cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode));
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUresult status = ask_cuStreamEndCapture(stream, graph);
    bool was_none = status == CUDA_ERROR_ILLEGAL_STATE || status == CUDA_ERROR_INVALID_HANDLE;
    if (is_capturing() && !was_none)
        __atomic_fetch_sub(&captures, 1, __ATOMIC_RELEASE);
    return status;
}

API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (is_capturing() || !status)
        return ask_cuStreamIsCapturing(stream, status);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult stream_is_captured(CUstream stream, bool *captured)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult status = is_capturing() ? cuStreamIsCapturing(stream, &capture) : CUDA_SUCCESS;
    *captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    return status;
}

/* The last that this thread asked for; the caller may look at it until the next call. */
static _Thread_local struct {
    CUgraphNode *nodes;
    CUgraphEdgeData *edges;
} shown;

static size_t get_nodes(struct message *m)
{
    size_t size;
    uint64_t count = get_u64(m), left = (m->lane->reply_used - m->lane->reply_at) / sizeof(uint64_t);
    if (count > left)
        return 0;
    CUgraphNode *nodes = realloc(shown.nodes, (count + 1) * sizeof *nodes);
    CUgraphEdgeData *edges = realloc(shown.edges, (count + 1) * sizeof *edges);
    shown.nodes = nodes ? nodes : shown.nodes;
    shown.edges = edges ? edges : shown.edges;
    if (!nodes || !edges)
        return 0;
    for (uint64_t i = 0; i < count; i++)
        nodes[i] = (CUgraphNode)(uintptr_t)get_u64(m);
    memset(edges, 0, (count + 1) * sizeof *edges);
    const void *found = get_inside(m, &size);
    if (found && size == count * sizeof *edges)
        memcpy(edges, found, size);
    return count;
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count, bool with_edges)
{
    struct message m;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!is_capturing())
        return CUDA_SUCCESS;
    int result = message_begin(&m, OP_capture_info);
    if (result)
        return (CUresult)result;
    put_u64(&m, with_edges);
    put_u64(&m, stream_number(stream));
    if ((result = message_call(&m)))
        return (CUresult)result;
    *status = (CUstreamCaptureStatus)get_u64(&m);
    uint64_t number = get_u64(&m), captured = get_u64(&m);
    size_t found = get_nodes(&m);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id)
        *id = number;
    if (graph)
        *graph = (CUgraph)(uintptr_t)captured;
    if (nodes)
        *nodes = shown.nodes;
    if (edges)
        *edges = shown.edges;
    if (count)
        *count = found;
    return CUDA_SUCCESS;
}

API cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **nodes, size_t *count)
{
    return capture_info(stream, status, id, graph, nodes, NULL, count, false);
}

API cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
    return capture_info(stream, status, id, graph, nodes, edges, count, edges != NULL || !nodes);
}
