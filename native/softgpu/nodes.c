/* The API's functions for each type of node: all of them fill in the one structure for every type. */
#include "graph.h"
#include <string.h>

typedef CUgraphNodeParams wish;

static wish wish_kernel(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted)
{
    return (wish){.type = CU_GRAPH_NODE_TYPE_KERNEL,
                  .kernel = {.func = wanted->func,
                             .gridDimX = wanted->gridDimX,
                             .gridDimY = wanted->gridDimY,
                             .gridDimZ = wanted->gridDimZ,
                             .blockDimX = wanted->blockDimX,
                             .blockDimY = wanted->blockDimY,
                             .blockDimZ = wanted->blockDimZ,
                             .sharedMemBytes = wanted->sharedMemBytes,
                             .kernelParams = wanted->kernelParams,
                             .extra = wanted->extra,
                             .kern = wanted->kern}};
}

/* The second version only appends fields to the first. */
static wish wish_kernel_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *wanted)
{
    CUDA_KERNEL_NODE_PARAMS_v2 newer = {0};
    memcpy(&newer, wanted, sizeof *wanted);
    return wish_kernel(&newer);
}

static wish wish_copy(const CUDA_MEMCPY3D *copy, CUcontext context)
{
    return (wish){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = {.copyCtx = context, .copyParams = *copy}};
}

static wish wish_fill(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    return (wish){.type = CU_GRAPH_NODE_TYPE_MEMSET,
                  .memset = {.dst = fill->dst,
                             .pitch = fill->pitch,
                             .value = fill->value,
                             .elementSize = fill->elementSize,
                             .width = fill->width,
                             .height = fill->height,
                             .ctx = context}};
}

static wish wish_host(const CUDA_HOST_NODE_PARAMS *host)
{
    return (wish){.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.fn = host->fn, .userData = host->userData}};
}

static wish wish_event(CUgraphNodeType type, CUevent event)
{
    return (wish){.type = type, .eventRecord = {.event = event}};
}

static bool is_context(CUcontext handle)
{
    return handle_get(HANDLE_CONTEXT, handle) != 0;
}

/* ---- adding ---- */
#define ADD_TO CUgraphNode *made, CUgraph graph, const CUgraphNode *needs, size_t count

static CUresult add(ADD_TO, wish wanted)
{
    return cuGraphAddNode_v2(made, graph, needs, 0, count, &wanted);
}

API cuGraphAddNode(ADD_TO, CUgraphNodeParams *wanted)
{
    return cuGraphAddNode_v2(made, graph, needs, 0, count, wanted);
}

API cuGraphAddNode_v3(CUgraphNode *made, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges,
                      size_t count, CUgraphNodeParams *wanted)
{
    return cuGraphAddNode_v2(made, graph, needs, edges, count, wanted);
}

API cuGraphAddKernelNode(ADD_TO, const CUDA_KERNEL_NODE_PARAMS_v1 *wanted)
{
    return wanted ? add(made, graph, needs, count, wish_kernel_v1(wanted)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphAddKernelNode_v2(ADD_TO, const CUDA_KERNEL_NODE_PARAMS_v2 *wanted)
{
    return wanted ? add(made, graph, needs, count, wish_kernel(wanted)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphAddMemcpyNode(ADD_TO, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    if (!is_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy ? add(made, graph, needs, count, wish_copy(copy, context)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphAddMemsetNode(ADD_TO, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    if (!is_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return fill ? add(made, graph, needs, count, wish_fill(fill, context)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphAddHostNode(ADD_TO, const CUDA_HOST_NODE_PARAMS *host)
{
    return host ? add(made, graph, needs, count, wish_host(host)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphAddEmptyNode(ADD_TO)
{
    return add(made, graph, needs, count, (wish){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

API cuGraphAddChildGraphNode(ADD_TO, CUgraph child)
{
    return add(made, graph, needs, count, (wish){.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}});
}

API cuGraphAddEventRecordNode(ADD_TO, CUevent event)
{
    return add(made, graph, needs, count, wish_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

API cuGraphAddEventWaitNode(ADD_TO, CUevent event)
{
    return add(made, graph, needs, count, wish_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

API cuGraphAddMemFreeNode(ADD_TO, CUdeviceptr pointer)
{
    return add(made, graph, needs, count, (wish){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {.dptr = pointer}});
}

API cuGraphAddMemAllocNode(ADD_TO, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *alloc)
{
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    wish wanted = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                   .alloc = {.poolProps = alloc->poolProps, .bytesize = alloc->bytesize}};
    CUresult status = cuGraphAddNode_v2(made, graph, needs, 0, count, &wanted);
    if (!status)
        alloc->dptr = wanted.alloc.dptr;
    return status;
}

/* ---- changing, in a graph ---- */
API cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams *wanted)
{
    struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node || !wanted || node->content.type != wanted->type)
        return CUDA_ERROR_INVALID_VALUE;
    return content_set(&node->content, wanted);
}

static CUresult change(CUgraphNode node, wish wanted)
{
    return cuGraphNodeSetParams(node, &wanted);
}

API cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *wanted)
{
    return cuGraphNodeSetParams(node, wanted);
}

API cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *wanted)
{
    return wanted ? change(node, wish_kernel_v1(wanted)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *wanted)
{
    return wanted ? change(node, wish_kernel(wanted)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy)
{
    return copy ? change(node, wish_copy(copy, 0)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill)
{
    return fill ? change(node, wish_fill(fill, 0)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *host)
{
    return host ? change(node, wish_host(host)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
    return change(node, wish_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

API cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
    return change(node, wish_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

/* ---- changing, in an instance ---- */
static CUresult change_in(CUgraphExec exec, CUgraphNode node, wish wanted)
{
    return cuGraphExecNodeSetParams(exec, node, &wanted);
}

API cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *wanted)
{
    return wanted ? change_in(exec, node, wish_kernel_v1(wanted)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *wanted)
{
    return wanted ? change_in(exec, node, wish_kernel(wanted)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    return copy && is_context(context) ? change_in(exec, node, wish_copy(copy, context)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill,
                                   CUcontext context)
{
    return fill && is_context(context) ? change_in(exec, node, wish_fill(fill, context)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *host)
{
    return host ? change_in(exec, node, wish_host(host)) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
    return change_in(exec, node, (wish){.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}});
}

API cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    return change_in(exec, node, wish_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

API cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    return change_in(exec, node, wish_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

/* ---- reading ---- */
API cuGraphNodeGetParams(CUgraphNode handle, CUgraphNodeParams *found)
{
    const struct node *node = handle_get(HANDLE_NODE, handle);
    return node && found ? content_get(&node->content, found) : CUDA_ERROR_INVALID_VALUE;
}

static bool read(CUgraphNode handle, CUgraphNodeType type, const void *answer, wish *found)
{
    return answer && !cuGraphNodeGetParams(handle, found) && found->type == type;
}

/* Reading a node's parameters as another type is an error. */
#define READ(TYPE, FIELD)                                                                                              \
    wish found;                                                                                                        \
    if (!read(node, CU_GRAPH_NODE_TYPE_##TYPE, answer, &found))                                                        \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    memcpy(answer, &found.FIELD, sizeof *answer); /* older versions of a structure are prefixes of newer ones */       \
    return CUDA_SUCCESS

API cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *answer)
{
    READ(KERNEL, kernel);
}

API cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *answer)
{
    READ(KERNEL, kernel);
}

API cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *answer)
{
    READ(MEMCPY, memcpy.copyParams);
}

API cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *answer)
{
    READ(MEMSET, memset);
}

API cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *answer)
{
    READ(HOST, host);
}

API cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *answer)
{
    READ(GRAPH, graph.graph);
}

API cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *answer)
{
    READ(EVENT_RECORD, eventRecord.event);
}

API cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *answer)
{
    READ(WAIT_EVENT, eventWait.event);
}

API cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *answer)
{
    READ(MEM_ALLOC, alloc);
}

API cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *answer)
{
    READ(MEM_FREE, free.dptr);
}

/* ---- edges, as in the API before edge data ---- */
API cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return cuGraphAddDependencies_v2(graph, from, to, 0, count);
}

API cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return cuGraphRemoveDependencies_v2(graph, from, to, 0, count);
}
