/* Copies between this process and a device. Data to the device are taken before the call returns. */
#include "client.h"

CUresult copy_to_device(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    struct message m;
    const char *at = from;
    if (size && !from)
        return CUDA_ERROR_INVALID_VALUE;
    bool captured;
    CUresult found = stream_is_captured(stream, &captured);
    if (found || captured)
        return found ? found : copy_captured(to, (uintptr_t)from, size, stream);
    for (size_t part; size; size -= part, to += part, at += part) {
        part = size < WIRE_PIECE ? size : WIRE_PIECE;
        int status = message_begin(&m, OP_copy_in);
        if (status)
            return (CUresult)status;
        put_u64(&m, to);
        put_u64(&m, part);
        put_u64(&m, stream_number(stream));
        if ((status = message_send_with(&m, at, part)))
            return (CUresult)status;
    }
    return facts ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult copy_from_device(void *to, CUdeviceptr from, size_t size, CUstream stream, bool later)
{
    struct message m;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!size)
        return CUDA_SUCCESS;
    if (!to)
        return CUDA_ERROR_INVALID_VALUE;
    if (!later && foreseen_copy(to, from, size))
        return CUDA_SUCCESS;
    bool captured;
    CUresult found = stream_is_captured(stream, &captured);
    if (found || captured)
        return found ? found : copy_captured((uintptr_t)to, from, size, stream);
    int status = message_begin(&m, later ? OP_copy_out_later : OP_copy_out);
    if (status)
        return (CUresult)status;
    struct landing *landing = landing_begin(to, size, later, NULL);
    if (!landing)
        return CUDA_ERROR_OUT_OF_MEMORY;
    put_u64(&m, landing_cookie(landing));
    put_u64(&m, from);
    put_u64(&m, size);
    put_u64(&m, stream_number(stream));
    if (later) /* the data come before the answer to whatever waits for them, and end the landing */
        return (CUresult)message_send(&m);
    status = message_call(&m);
    landing_end(landing);
    return (CUresult)status;
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy_to_device(to, from, size, NULL);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return copy_to_device(to, from, size, stream);
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy_from_device(to, from, size, NULL, false);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy_from_device(to, from, size, stream, true);
}

static bool is_host(CUdeviceptr address)
{
    struct range range;
    return !range_find(address, &range) || range.host;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream, bool later)
{
    bool to_host = is_host(to), from_host = is_host(from);
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!to_host && !from_host)
        return later ? cuMemcpyDtoDAsync_v2(to, from, size, stream) : cuMemcpyDtoD_v2(to, from, size);
    if (!to_host)
        return copy_to_device(to, (const void *)from, size, stream);
    if (!from_host)
        return copy_from_device((void *)to, from, size, stream, later);
    CUresult status = cuStreamSynchronize(stream); /* kernels may write either */
    if (!status)
        memmove((void *)to, (const void *)from, size);
    return status;
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy(to, from, size, NULL, false);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy(to, from, size, stream, true);
}
