/* The end of a stream, and captures: launches into a captured stream do not run. */
#include "enforce.h"
#include "lease.h"

API cuStreamDestroy_v2(CUstream stream)
{
    lease_stream_ends(stream);
    devices_stream_ends(stream);
    return cudaapi_real.cuStreamDestroy_v2(stream);
}

API cuStreamDestroy(CUstream stream)
{
    lease_stream_ends(stream);
    devices_stream_ends(stream);
    return cudaapi_real.cuStreamDestroy(stream);
}

/* Counted before the driver's call: a launch of another thread must not miss it. */
#define BEGIN_CAPTURE(call)                                                                                            \
    ({                                                                                                                 \
        lease_capture_begins();                                                                                        \
        CUresult answer = (call);                                                                                      \
        if (answer)                                                                                                    \
            lease_capture_ends();                                                                                      \
        answer;                                                                                                        \
    })

API cuStreamBeginCapture(CUstream stream)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCapture(stream));
}

API cuStreamBeginCapture_ptsz(CUstream stream)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCapture_ptsz(stream));
}

API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCapture_v2(stream, mode));
}

API cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCapture_v2_ptsz(stream, mode));
}

API cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges,
                                size_t count, CUstreamCaptureMode mode)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCaptureToGraph(stream, graph, before, edges, count, mode));
}

API cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *before,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCaptureToGraph_ptsz(stream, graph, before, edges, count, mode));
}

API cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *parameters)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCaptureToCig(stream, parameters));
}

API cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams *parameters)
{
    return BEGIN_CAPTURE(cudaapi_real.cuStreamBeginCaptureToCig_ptsz(stream, parameters));
}

/* A capture that was invalidated ends here, too. After other errors it continues. */
static CUresult capture_ended(CUresult status)
{
    if (status == CUDA_SUCCESS || status == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        lease_capture_ends();
    return status;
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return capture_ended(cudaapi_real.cuStreamEndCapture(stream, graph));
}

API cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return capture_ended(cudaapi_real.cuStreamEndCapture_ptsz(stream, graph));
}

API cuStreamEndCaptureToCig(CUstream stream)
{
    return capture_ended(cudaapi_real.cuStreamEndCaptureToCig(stream));
}

API cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    return capture_ended(cudaapi_real.cuStreamEndCaptureToCig_ptsz(stream));
}
