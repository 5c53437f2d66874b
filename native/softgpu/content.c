/* What a node of a graph does. The API uses one structure for all types of nodes to set and read it. */
#include "graph.h"
#include <stdlib.h>
#include <string.h>

/* ---- kernels ---- */
/* Parameters, followed by a pointer to each, as the API presents them. */
static bool room_for_parameters(struct content *content, const struct sg_kernel *kernel)
{
    size_t bytes = (kernel->parameter_bytes + 15u) & ~15u;
    content->kernel.parameters = malloc(bytes + (kernel->parameters + 1) * sizeof(void *));
    if (!content->kernel.parameters)
        return false;
    content->kernel.values = (void **)(content->kernel.parameters + bytes);
    for (uint32_t at = 0; at < kernel->parameters; at++)
        content->kernel.values[at] = content->kernel.parameters + kernel->offsets[at];
    return true;
}

static CUresult set_kernel(struct content *content, const CUDA_KERNEL_NODE_PARAMS_v3 *wanted)
{
    struct function *function;
    if (function_find(wanted->func ? wanted->func : (CUfunction)wanted->kern, &function))
        return CUDA_ERROR_INVALID_VALUE;
    content->kernel.grid = (struct grid){.kernel = function->kernel,
                                         .function = function->handle,
                                         .blocks = {wanted->gridDimX, wanted->gridDimY, wanted->gridDimZ},
                                         .threads = {wanted->blockDimX, wanted->blockDimY, wanted->blockDimZ},
                                         .dynamic_shared = wanted->sharedMemBytes};
    CUresult status = launch_check(function->module->context, function, &content->kernel.grid);
    if (status)
        return status;
    if (!room_for_parameters(content, function->kernel))
        return CUDA_ERROR_OUT_OF_MEMORY;
    status = launch_pack(function, wanted->kernelParams, wanted->extra, content->kernel.parameters);
    if (status)
        free(content->kernel.parameters);
    return status;
}

static void get_kernel(const struct content *content, CUDA_KERNEL_NODE_PARAMS_v3 *found)
{
    const struct grid *grid = &content->kernel.grid;
    *found = (CUDA_KERNEL_NODE_PARAMS_v3){.func = grid->function,
                                          .gridDimX = grid->blocks[0],
                                          .gridDimY = grid->blocks[1],
                                          .gridDimZ = grid->blocks[2],
                                          .blockDimX = grid->threads[0],
                                          .blockDimY = grid->threads[1],
                                          .blockDimZ = grid->threads[2],
                                          .sharedMemBytes = grid->dynamic_shared,
                                          .kernelParams = content->kernel.values};
}

/* ---- the others ---- */
/* The address is known from now on. The memory stays until the context ends, because a graph may run again. */
static CUresult set_alloc(CUDA_MEM_ALLOC_NODE_PARAMS_v2 *alloc)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (!status && alloc->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        status = CUDA_ERROR_NOT_SUPPORTED;
    if (!status && alloc->poolProps.location.id != context->card->ordinal)
        status = CUDA_ERROR_INVALID_VALUE;
    void *memory;
    if (!status)
        status = memory_new(context, alloc->bytesize, MEMORY_DEVICE, &memory);
    if (!status)
        alloc->dptr = (CUdeviceptr)(uintptr_t)memory;
    return status;
}

static CUresult set_inner(struct content *content, const CUDA_CHILD_GRAPH_NODE_PARAMS *wanted)
{
    const struct graph *inner = handle_get(HANDLE_GRAPH, wanted->graph);
    if (!inner || wanted->ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
        return inner ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    content->inner = graph_copy(inner, true);
    if (!content->inner)
        return CUDA_ERROR_INVALID_VALUE;
    content->inner->inner = true;
    return CUDA_SUCCESS;
}

static CUresult set(struct content *content, CUgraphNodeParams *wanted)
{
    CUresult status = CUDA_SUCCESS;
    switch ((int)wanted->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return set_kernel(content, &wanted->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: content->copy = wanted->memcpy; return copy_check(&wanted->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: content->fill = wanted->memset; return fill_check(&wanted->memset);
    case CU_GRAPH_NODE_TYPE_HOST:
        content->host = wanted->host;
        return wanted->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_GRAPH: return set_inner(content, &wanted->graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        content->event = wanted->eventRecord.event; /* wait nodes have it at the same offset */
        return handle_get(HANDLE_EVENT, content->event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        status = set_alloc(&wanted->alloc);
        content->alloc = wanted->alloc;
        return status;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        content->freed = wanted->free.dptr;
        return memory_holds(content->freed, 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}
_Static_assert(offsetof(CUgraphNodeParams, eventRecord.event) == offsetof(CUgraphNodeParams, eventWait.event), "");

CUresult content_set(struct content *content, CUgraphNodeParams *wanted)
{
    struct content fresh = {.type = wanted->type};
    CUresult status = set(&fresh, wanted);
    if (status)
        return status;
    content_clear(content);
    *content = fresh;
    return CUDA_SUCCESS;
}

CUresult content_get(const struct content *content, CUgraphNodeParams *found)
{
    memset(found, 0, sizeof *found);
    found->type = content->type;
    switch ((int)content->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: get_kernel(content, &found->kernel); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: found->memcpy = content->copy; break;
    case CU_GRAPH_NODE_TYPE_MEMSET: found->memset = content->fill; break;
    case CU_GRAPH_NODE_TYPE_HOST: found->host = content->host; break;
    case CU_GRAPH_NODE_TYPE_GRAPH: found->graph.graph = content->inner->handle; break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: found->eventRecord.event = content->event; break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: found->alloc = content->alloc; break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE: found->free.dptr = content->freed; break;
    default: break;
    }
    return CUDA_SUCCESS;
}

/* Make a node that does what the stream would have done. */
CUresult content_of_work(struct content *content, const struct work *work)
{
    const CUmemorytype any = CU_MEMORYTYPE_UNIFIED;
    *content = (struct content){0};
    if (work->kind == WORK_GRID) {
        content->type = CU_GRAPH_NODE_TYPE_KERNEL;
        content->kernel.grid = work->grid;
        if (!room_for_parameters(content, work->grid.kernel))
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(content->kernel.parameters, work->parameters, work->grid.kernel->parameter_bytes);
    } else if (work->kind == WORK_COPY) {
        content->type = CU_GRAPH_NODE_TYPE_MEMCPY;
        content->copy.copyParams = (CUDA_MEMCPY3D){.srcMemoryType = any,
                                                   .srcDevice = (CUdeviceptr)(uintptr_t)work->copy.from,
                                                   .srcPitch = work->copy.from_pitch,
                                                   .srcHeight = work->copy.rows,
                                                   .dstMemoryType = any,
                                                   .dstDevice = (CUdeviceptr)(uintptr_t)work->copy.to,
                                                   .dstPitch = work->copy.to_pitch,
                                                   .dstHeight = work->copy.rows,
                                                   .WidthInBytes = work->copy.width,
                                                   .Height = work->copy.rows,
                                                   .Depth = 1};
    } else if (work->kind == WORK_FILL) {
        content->type = CU_GRAPH_NODE_TYPE_MEMSET;
        content->fill = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = (CUdeviceptr)(uintptr_t)work->fill.to,
                                                     .pitch = work->fill.pitch,
                                                     .value = work->fill.value,
                                                     .elementSize = work->fill.unit,
                                                     .width = work->fill.count,
                                                     .height = work->fill.rows};
    } else {
        content->type = CU_GRAPH_NODE_TYPE_HOST;
        content->host = (CUDA_HOST_NODE_PARAMS_v2){.fn = work->host.function, .userData = work->host.argument};
    }
    return CUDA_SUCCESS;
}

bool content_copy(struct content *to, const struct content *from, bool handles)
{
    *to = *from;
    if (from->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        to->inner = graph_copy(from->inner, handles);
        if (to->inner)
            to->inner->inner = true;
        return to->inner != 0;
    }
    if (from->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return true;
    if (!room_for_parameters(to, from->kernel.grid.kernel))
        return false;
    memcpy(to->kernel.parameters, from->kernel.parameters, from->kernel.grid.kernel->parameter_bytes);
    return true;
}

void content_clear(struct content *content)
{
    if (content->type == CU_GRAPH_NODE_TYPE_KERNEL)
        free(content->kernel.parameters);
    else if (content->type == CU_GRAPH_NODE_TYPE_GRAPH && content->inner)
        graph_free(content->inner);
    *content = (struct content){.type = CU_GRAPH_NODE_TYPE_EMPTY};
}

/* ---- running ---- */
static CUresult submit_kernel(const struct content *content, struct stream *stream)
{
    if (!handle_get(HANDLE_FUNCTION, content->kernel.grid.function))
        return CUDA_ERROR_INVALID_HANDLE; /* its module was unloaded */
    /* A graph may contain kernels of several contexts; peer memory is in the same address space here. */
    struct work *work = work_new(WORK_GRID, content->kernel.grid.kernel->parameter_bytes);
    if (work) {
        work->grid = content->kernel.grid;
        memcpy(work->parameters, content->kernel.parameters, content->kernel.grid.kernel->parameter_bytes);
    }
    return stream_submit(stream, work);
}

static CUresult submit_host(const CUDA_HOST_NODE_PARAMS_v2 *host, struct stream *stream)
{
    struct work *work = work_new(WORK_HOST, 0);
    if (work) {
        work->host.function = host->fn;
        work->host.argument = host->userData;
    }
    return stream_submit(stream, work);
}

static CUresult submit_inner(const struct graph *inner, struct stream *stream)
{
    CUresult status = CUDA_SUCCESS;
    for (size_t at = 0; !status && at < inner->count; at++)
        if (!inner->nodes[at]->disabled)
            status = content_submit(&inner->nodes[at]->content, stream);
    return status;
}

CUresult content_submit(const struct content *content, struct stream *stream)
{
    switch ((int)content->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return submit_kernel(content, stream);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copy_submit(stream, &content->copy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: return fill_submit(&content->fill, stream);
    case CU_GRAPH_NODE_TYPE_HOST: return submit_host(&content->host, stream);
    case CU_GRAPH_NODE_TYPE_GRAPH: return submit_inner(content->inner, stream);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return event_record(content->event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return event_wait(content->event, stream);
    default: return CUDA_SUCCESS;
    }
}
