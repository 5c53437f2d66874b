/* Whether any stream is being captured is known here; which one it is, the worker knows. */
#include "client.h"

static int captures; /* begun, and not ended */

bool is_capturing(void)
{
    return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) > 0;
}

API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    CUresult status = ask_cuStreamBeginCapture_v2(stream, mode);
    if (!status)
        __atomic_fetch_add(&captures, 1, __ATOMIC_RELEASE);
    return status;
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUresult status = ask_cuStreamEndCapture(stream, graph);
    if (is_capturing())
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
