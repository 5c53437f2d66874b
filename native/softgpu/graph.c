/* Graphs: nodes in the order they were added, which is one that their dependencies allow. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>

/* NODE_WORK: a fill, a host function or a captured copy, as a stream would do it. */
enum node_kind { NODE_KERNEL, NODE_COPY, NODE_EMPTY, NODE_WORK };

struct node {
    CUgraphNode handle;
    struct graph *graph;
    enum node_kind kind;
    size_t place;
    CUfunction function;
    struct grid grid;
    unsigned char *parameters;
    size_t parameter_bytes;
    CUDA_MEMCPY3D copy;
    struct work work;
};

struct graph {
    struct node **nodes;
    size_t count, room;
    struct keep keep;
};

/* When to upload or free, and in which order of priority: nothing that a result depends on. */
static const unsigned long long HARMLESS_FLAGS = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
                                                 | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
                                                 | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

/* An instance has its own copies of the nodes: changes to one do not reach the graph or other instances. */
struct exec {
    struct node *nodes;
    size_t count;
    struct graph *graph;
    struct keep keep;
};

API cuGraphCreate(CUgraph *made, unsigned flags)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!made || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph *graph = calloc(1, sizeof *graph);
    *made = graph ? handle_new(HANDLE_GRAPH, graph) : 0;
    return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphDestroy(CUgraph handle)
{
    struct graph *graph = handle_drop(HANDLE_GRAPH, handle);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < graph->count; at++) {
        handle_drop(HANDLE_NODE, graph->nodes[at]->handle);
        free(graph->nodes[at]->parameters);
        free(graph->nodes[at]);
    }
    keep_clear(&graph->keep);
    free(graph->nodes);
    free(graph);
    return CUDA_SUCCESS;
}

static CUresult add(CUgraph handle, const CUgraphNode *dependencies, size_t count, struct node *content,
                    CUgraphNode *made)
{
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || !made || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < count; at++) {
        struct node *other = handle_get(HANDLE_NODE, dependencies[at]);
        if (!other || other->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (graph->count == graph->room) {
        size_t room = graph->room ? 2 * graph->room : 16;
        struct node **larger = realloc(graph->nodes, room * sizeof *larger);
        if (!larger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->nodes = larger;
        graph->room = room;
    }
    struct node *node = malloc(sizeof *node);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *node = *content;
    node->graph = graph;
    node->place = graph->count;
    node->handle = handle_new(HANDLE_NODE, node);
    graph->nodes[graph->count++] = node;
    *made = node->handle;
    return CUDA_SUCCESS;
}

static CUresult set_kernel(struct node *node, const CUDA_KERNEL_NODE_PARAMS_v1 *wanted)
{
    struct function *function;
    if (!wanted || function_find(wanted->func, &function))
        return CUDA_ERROR_INVALID_VALUE;
    struct grid grid = {.kernel = function->kernel,
                        .blocks = {wanted->gridDimX, wanted->gridDimY, wanted->gridDimZ},
                        .threads = {wanted->blockDimX, wanted->blockDimY, wanted->blockDimZ},
                        .dynamic_shared = wanted->sharedMemBytes};
    CUresult status = launch_check(function->module->context, function, &grid);
    if (status)
        return status;
    unsigned char *parameters = malloc(function->kernel->parameter_bytes + 1u);
    if (!parameters)
        return CUDA_ERROR_OUT_OF_MEMORY;
    status = launch_pack(function, wanted->kernelParams, wanted->extra, parameters);
    if (status) {
        free(parameters);
        return status;
    }
    free(node->parameters);
    node->kind = NODE_KERNEL;
    node->function = function->handle;
    node->grid = grid;
    node->grid.function = function->handle;
    node->parameters = parameters;
    node->parameter_bytes = function->kernel->parameter_bytes;
    return CUDA_SUCCESS;
}

API cuGraphAddKernelNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         const CUDA_KERNEL_NODE_PARAMS_v1 *wanted)
{
    struct node node = {0};
    CUresult status = set_kernel(&node, wanted);
    if (!status)
        status = add(graph, dependencies, count, &node, made);
    if (status)
        free(node.parameters);
    return status;
}

/* The second version only adds fields behind those of the first. */
API cuGraphAddKernelNode_v2(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_KERNEL_NODE_PARAMS_v2 *wanted)
{
    if (wanted && !wanted->func)
        return CUDA_ERROR_NOT_SUPPORTED; /* a CUkernel */
    return cuGraphAddKernelNode(made, graph, dependencies, count, (const CUDA_KERNEL_NODE_PARAMS_v1 *)wanted);
}

API cuGraphAddMemcpyNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         const CUDA_MEMCPY3D *copy, CUcontext context)
{
    if (!handle_get(HANDLE_CONTEXT, context))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult status = copy_check(copy);
    if (status)
        return status;
    struct node node = {.kind = NODE_COPY, .copy = *copy};
    return add(graph, dependencies, count, &node, made);
}

API cuGraphAddEmptyNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    struct node node = {.kind = NODE_EMPTY};
    return add(graph, dependencies, count, &node, made);
}

API cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned count, unsigned flags)
{
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = flags ? CUDA_SUCCESS : owned_keep(object, count);
    return status ? status : keep_add(&graph->keep, object, count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned count)
{
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    for (size_t at = 0; graph && at < graph->keep.count; at++) {
        struct kept *kept = &graph->keep.items[at];
        if (kept->handle != object || kept->count < count)
            continue;
        kept->count -= count;
        if (!kept->count)
            *kept = graph->keep.items[--graph->keep.count];
        return owned_drop(object, count);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

API cuGraphAddMemsetNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    if (!handle_get(HANDLE_CONTEXT, context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!fill || (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4) || !fill->height
        || fill->width > SIZE_MAX / 4 || (fill->height > 1 && fill->pitch < fill->width * fill->elementSize)
        || fill->height > SIZE_MAX / 4 / (fill->pitch + 1)
        || !memory_holds(fill->dst, (fill->height - 1) * fill->pitch + fill->width * fill->elementSize))
        return CUDA_ERROR_INVALID_VALUE;
    struct node node = {.kind = NODE_WORK, .work = {.kind = WORK_FILL}};
    node.work.fill.to = (char *)(uintptr_t)fill->dst;
    node.work.fill.value = fill->value;
    node.work.fill.unit = fill->elementSize;
    node.work.fill.count = fill->width;
    node.work.fill.rows = fill->height;
    node.work.fill.pitch = fill->pitch;
    return add(graph, dependencies, count, &node, made);
}

API cuGraphAddHostNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                       const CUDA_HOST_NODE_PARAMS *host)
{
    if (!host || !host->fn)
        return CUDA_ERROR_INVALID_VALUE;
    struct node node = {.kind = NODE_WORK, .work = {.kind = WORK_HOST}};
    node.work.host.function = host->fn;
    node.work.host.argument = host->userData;
    return add(graph, dependencies, count, &node, made);
}

/* A copy of a node with parameters of its own. */
static bool node_copy(struct node *to, const struct node *from)
{
    *to = *from;
    to->parameters = malloc(from->parameter_bytes + 1);
    if (to->parameters && from->parameter_bytes)
        memcpy(to->parameters, from->parameters, from->parameter_bytes);
    return to->parameters != 0;
}

/* The other graph's nodes as they are now, and an empty one that stands for them. */
API cuGraphAddChildGraphNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                             CUgraph child)
{
    struct graph *inner = handle_get(HANDLE_GRAPH, child), *outer = handle_get(HANDLE_GRAPH, graph);
    if (!inner || inner == outer)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    for (size_t at = 0; !status && at < inner->count; at++) {
        struct node node;
        CUgraphNode unused;
        status = node_copy(&node, inner->nodes[at]) ? add(graph, dependencies, count, &node, &unused)
                                                    : CUDA_ERROR_OUT_OF_MEMORY;
        if (status)
            free(node.parameters);
    }
    return status ? status : cuGraphAddEmptyNode(made, graph, dependencies, count);
}

/* What a stream would have done becomes a node. Takes the work. */
CUresult graph_add_work(CUgraph graph, struct work *work, CUgraphNode *made)
{
    struct node node = {.kind = NODE_WORK, .work = *work};
    if (work->kind == WORK_GRID) {
        node.kind = NODE_KERNEL;
        node.function = work->grid.function;
        node.grid = work->grid;
        node.parameter_bytes = work->grid.kernel->parameter_bytes;
        node.parameters = malloc(node.parameter_bytes + 1);
        if (!node.parameters)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(node.parameters, work->parameters, node.parameter_bytes);
    }
    CUresult status = add(graph, 0, 0, &node, made);
    if (status)
        free(node.parameters);
    else
        free(work);
    return status;
}

API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
    struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    enum work_kind kind = node->work.kind;
    *type = node->kind == NODE_KERNEL  ? CU_GRAPH_NODE_TYPE_KERNEL
            : node->kind == NODE_EMPTY ? CU_GRAPH_NODE_TYPE_EMPTY
            : node->kind == NODE_COPY || kind == WORK_COPY ? CU_GRAPH_NODE_TYPE_MEMCPY
            : kind == WORK_FILL ? CU_GRAPH_NODE_TYPE_MEMSET
                                : CU_GRAPH_NODE_TYPE_HOST;
    return CUDA_SUCCESS;
}

API cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; nodes && at < *count; at++)
        nodes[at] = at < graph->count ? graph->nodes[at]->handle : 0;
    if (!nodes || *count > graph->count)
        *count = graph->count;
    return CUDA_SUCCESS;
}

static void exec_free(struct exec *exec)
{
    for (size_t at = 0; at < exec->count; at++)
        free(exec->nodes[at].parameters);
    keep_clear(&exec->keep);
    free(exec->nodes);
    free(exec);
}

static CUresult instantiate(CUgraphExec *made, CUgraph handle)
{
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || !made)
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *exec = calloc(1, sizeof *exec);
    if (!exec || !(exec->nodes = calloc(graph->count + 1, sizeof *exec->nodes))) {
        free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->graph = graph;
    for (size_t at = 0; at < graph->count; at++, exec->count++) {
        if (!node_copy(&exec->nodes[at], graph->nodes[at])) {
            exec_free(exec);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    keep_copy(&exec->keep, &graph->keep);
    *made = handle_new(HANDLE_EXEC, exec);
    return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphInstantiate_v2(CUgraphExec *made, CUgraph graph, CUgraphNode *error_node, char *log, size_t room)
{
    if (error_node)
        *error_node = 0;
    if (log && room)
        *log = 0;
    return instantiate(made, graph);
}

API cuGraphInstantiate(CUgraphExec *made, CUgraph graph, CUgraphNode *error_node, char *log, size_t room)
{
    return cuGraphInstantiate_v2(made, graph, error_node, log, room);
}

API cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
    return flags & ~HARMLESS_FLAGS ? CUDA_ERROR_NOT_SUPPORTED : instantiate(made, graph);
}

API cuGraphInstantiateWithParams(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *wanted)
{
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGraphInstantiateWithFlags(made, graph, wanted->flags);
    wanted->hErrNode_out = 0;
    wanted->result_out = status ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return status;
}

API cuGraphUpload(CUgraphExec handle, CUstream on)
{
    struct context *context;
    struct stream *stream;
    CUresult status = context_of_stream(on, &context, &stream);
    return status ? status : handle_get(HANDLE_EXEC, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Gives an instance the parameters of a graph of the same shape. */
API cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *result)
{
    struct exec *exec = handle_get(HANDLE_EXEC, handle);
    struct graph *graph = handle_get(HANDLE_GRAPH, graph_handle);
    if (!exec || !graph || !result)
        return CUDA_ERROR_INVALID_VALUE;
    memset(result, 0, sizeof *result);
    bool same = exec->count == graph->count;
    for (size_t at = 0; same && at < graph->count; at++)
        same = exec->nodes[at].kind == graph->nodes[at]->kind && exec->nodes[at].work.kind == graph->nodes[at]->work.kind;
    if (!same) {
        result->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t at = 0; at < graph->count; at++) {
        struct node fresh;
        if (!node_copy(&fresh, graph->nodes[at]))
            return CUDA_ERROR_OUT_OF_MEMORY;
        free(exec->nodes[at].parameters);
        exec->nodes[at] = fresh;
    }
    exec->graph = graph;
    return CUDA_SUCCESS;
}

/* An instance knows its nodes by the place that the graph gave them. */
static struct node *exec_node(CUgraphExec handle, CUgraphNode node, enum node_kind kind)
{
    struct exec *exec = handle_get(HANDLE_EXEC, handle);
    struct node *original = handle_get(HANDLE_NODE, node);
    if (!exec || !original || original->graph != exec->graph || original->place >= exec->count
        || original->kind != kind)
        return 0;
    return &exec->nodes[original->place];
}

API cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v1 *wanted)
{
    struct node *node = exec_node(exec, handle, NODE_KERNEL);
    return node ? set_kernel(node, wanted) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v2 *wanted)
{
    return cuGraphExecKernelNodeSetParams(exec, handle, (const CUDA_KERNEL_NODE_PARAMS_v1 *)wanted);
}

API cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode handle, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    struct node *node = exec_node(exec, handle, NODE_COPY);
    if (!node || !handle_get(HANDLE_CONTEXT, context))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = copy_check(copy);
    if (!status)
        node->copy = *copy;
    return status;
}

static CUresult run_node(struct context *context, struct stream *stream, const struct node *node)
{
    if (node->kind == NODE_COPY)
        return copy_submit(stream, &node->copy);
    if (node->kind == NODE_EMPTY)
        return CUDA_SUCCESS;
    if (node->kind == NODE_WORK) {
        struct work *work = work_new(node->work.kind, 0);
        if (work)
            *work = node->work;
        return stream_submit(stream, work);
    }
    struct function *function = handle_get(HANDLE_FUNCTION, node->function);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE; /* its module was unloaded */
    /* A graph may hold kernels of several contexts; peers' memory is one address space here. */
    (void)context;
    struct work *work = work_new(WORK_GRID, node->parameter_bytes);
    if (work) {
        work->grid = node->grid;
        memcpy(work->parameters, node->parameters, node->parameter_bytes);
    }
    return stream_submit(stream, work);
}

API cuGraphLaunch(CUgraphExec handle, CUstream on)
{
    struct exec *exec = handle_get(HANDLE_EXEC, handle);
    struct context *context;
    struct stream *stream;
    CUresult status = context_of_stream(on, &context, &stream);
    if (!status && !exec)
        status = CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; !status && at < exec->count; at++)
        status = run_node(context, stream, &exec->nodes[at]);
    return status;
}

API cuGraphExecDestroy(CUgraphExec handle)
{
    struct exec *exec = handle_drop(HANDLE_EXEC, handle);
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    exec_free(exec);
    return CUDA_SUCCESS;
}
