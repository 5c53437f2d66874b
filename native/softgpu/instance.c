/* Instances of graphs: copies with ordered nodes, so that changes to one affect neither the graph nor other
 * instances. */
#include "graph.h"
#include <stdlib.h>
#include <string.h>

/* When to upload or free, and with which priorities: flags that no result depends on. */
static const unsigned long long HARMLESS_FLAGS = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
                                                 | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
                                                 | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

struct exec {
    struct graph *graph;
    unsigned origin; /* the graph whose nodes identify those here */
    unsigned long long flags;
};

API cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph handle, unsigned long long flags)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (flags & ~HARMLESS_FLAGS)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!graph || !made)
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *exec = calloc(1, sizeof *exec);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *exec = (struct exec){graph_copy(graph, false), graph->id, flags};
    if (!exec->graph) {
        free(exec);
        return CUDA_ERROR_INVALID_VALUE; /* there is a cycle */
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
    return cuGraphInstantiateWithFlags(made, graph, 0);
}

API cuGraphInstantiate(CUgraphExec *made, CUgraph graph, CUgraphNode *error_node, char *log, size_t room)
{
    return cuGraphInstantiate_v2(made, graph, error_node, log, room);
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

API cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags)
{
    const struct exec *exec = handle_get(HANDLE_EXEC, handle);
    if (!exec || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

API cuGraphExecGetId(CUgraphExec handle, unsigned *id)
{
    const struct exec *exec = handle_get(HANDLE_EXEC, handle);
    if (!exec || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = exec->graph->id;
    return CUDA_SUCCESS;
}

API cuGraphUpload(CUgraphExec handle, CUstream on)
{
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    return status ? status : handle_get(HANDLE_EXEC, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphLaunch(CUgraphExec handle, CUstream on)
{
    const struct exec *exec = handle_get(HANDLE_EXEC, handle);
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    if (status)
        return status;
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    const struct content whole = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .inner = exec->graph};
    return content_submit(&whole, stream);
}

API cuGraphExecDestroy(CUgraphExec handle)
{
    struct exec *exec = handle_drop(HANDLE_EXEC, handle);
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(exec->graph);
    free(exec);
    return CUDA_SUCCESS;
}

/* ---- changes ---- */
/* An instance's node for a node of the graph. */
static struct node *node_here(CUgraphExec handle, CUgraphNode node)
{
    const struct exec *exec = handle_get(HANDLE_EXEC, handle);
    const struct node *original = handle_get(HANDLE_NODE, node);
    return exec && original && original->graph->id == exec->origin ? graph_find(exec->graph, original->id) : 0;
}

API cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode handle, CUgraphNodeParams *wanted)
{
    struct node *node = node_here(exec, handle);
    if (!node || !wanted || node->content.type != wanted->type)
        return CUDA_ERROR_INVALID_VALUE;
    return content_set(&node->content, wanted);
}

API cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned enabled)
{
    struct node *node = node_here(exec, handle);
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    node->disabled = !enabled;
    return CUDA_SUCCESS;
}

API cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned *enabled)
{
    const struct node *node = node_here(exec, handle);
    if (!node || !enabled)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !node->disabled;
    return CUDA_SUCCESS;
}

/* Whether two nodes have the same dependencies in their graphs, both of which are ordered. */
static CUgraphExecUpdateResult compare(const struct node *node, const struct node *other)
{
    if (node->content.type != other->content.type)
        return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    bool same = node->need_count == other->need_count;
    for (size_t at = 0; same && at < node->need_count; at++)
        same = node->needs[at]->place == other->needs[at]->place;
    return same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
}

static CUgraphExecUpdateResult fits(const struct graph *old, const struct graph *fresh, size_t *at)
{
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (old->count != fresh->count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (*at = 0; *at < old->count; ++*at)
        if ((result = compare(old->nodes[*at], fresh->nodes[*at])))
            return result;
    return result;
}

/* Give an instance the parameters of a graph of the same shape. Its nodes keep their ids. */
API cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *result)
{
    struct exec *exec = handle_get(HANDLE_EXEC, handle);
    const struct graph *graph = handle_get(HANDLE_GRAPH, graph_handle);
    if (!exec || !graph || !result)
        return CUDA_ERROR_INVALID_VALUE;
    memset(result, 0, sizeof *result);
    struct graph *fresh = graph_copy(graph, false);
    size_t at = 0;
    result->result = fresh ? fits(exec->graph, fresh, &at) : CU_GRAPH_EXEC_UPDATE_ERROR;
    if (result->result) {
        const struct node *node = fresh && at < fresh->count ? graph_find(graph, fresh->nodes[at]->id) : 0;
        result->errorNode = node ? node->handle : 0;
        if (fresh)
            graph_free(fresh);
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (at = 0; at < fresh->count; at++) {
        fresh->nodes[at]->id = exec->graph->nodes[at]->id;
        fresh->nodes[at]->disabled = exec->graph->nodes[at]->disabled;
    }
    graph_free(exec->graph);
    exec->graph = fresh;
    return CUDA_SUCCESS;
}
