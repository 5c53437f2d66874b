/* Graphs: nodes in the order they were added, which is one that their dependencies allow. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>

enum node_kind { NODE_KERNEL, NODE_COPY, NODE_EMPTY };

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
};

struct graph {
    struct node **nodes;
    size_t count, room;
};

/* An instance has its own copies of the nodes: changes to one do not reach the graph or other instances. */
struct exec {
    struct node *nodes;
    size_t count;
    struct graph *graph;
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
        struct node *node = &exec->nodes[at];
        *node = *graph->nodes[at];
        node->parameters = malloc(node->parameter_bytes + 1);
        if (!node->parameters) {
            exec_free(exec);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (node->parameter_bytes)
            memcpy(node->parameters, graph->nodes[at]->parameters, node->parameter_bytes);
    }
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
    return flags ? CUDA_ERROR_NOT_SUPPORTED : instantiate(made, graph);
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
