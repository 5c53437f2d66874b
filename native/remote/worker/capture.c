/* What a stream that is captured has so far. */
#include "worker.h"

void do_capture_info(struct request *r)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t count = 0;
    uint64_t with_edges = take_u64(r);
    CUstream stream = take_stream(r);
    if (r->status)
        return;
    r->status = (int)(with_edges
                          ? real_cuda.cuStreamGetCaptureInfo_v3(stream, &capture, &id, &graph, &nodes, &edges, &count)
                          : real_cuda.cuStreamGetCaptureInfo_v2(stream, &capture, &id, &graph, &nodes, &count));
    if (r->status)
        return;
    answer_u64(r, capture);
    answer_u64(r, id);
    answer_u64(r, graph ? handle_find(graph) : 0);
    answer_handles(r, (void *const *)nodes, nodes ? count : 0);
    answer_block(r, edges, edges ? count * sizeof *edges : 0);
}
