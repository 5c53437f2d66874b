/* Queries about a graph. Callers query lists twice: first the length, then as many entries as they have room for. */
#include "graph.h"
#include <string.h>

struct list {
    CUgraphNode *nodes, *others; /* null: only count */
    size_t room, count;
};

static void put(struct list *list, const struct node *node, const struct node *other)
{
    if (list->count < list->room) {
        if (list->nodes)
            list->nodes[list->count] = node->handle;
        if (list->others)
            list->others[list->count] = other->handle;
    }
    list->count++;
}

/* Unused room is cleared. */
static CUresult give(const struct list *list, size_t *count, CUgraphEdgeData *edges)
{
    for (size_t at = list->count; list->nodes && at < list->room; at++)
        list->nodes[at] = 0;
    for (size_t at = list->count; list->others && at < list->room; at++)
        list->others[at] = 0;
    if (edges)
        memset(edges, 0, list->room * sizeof *edges);
    *count = list->nodes && list->count > list->room ? list->room : list->count;
    return CUDA_SUCCESS;
}

static struct list list_of(CUgraphNode *nodes, CUgraphNode *others, const size_t *count)
{
    return (struct list){nodes, others, nodes ? *count : 0, 0};
}

API cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = list_of(nodes, 0, count);
    for (size_t at = 0; at < graph->count; at++)
        put(&list, graph->nodes[at], 0);
    return give(&list, count, 0);
}

API cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = list_of(nodes, 0, count);
    for (size_t at = 0; at < graph->count; at++)
        if (!graph->nodes[at]->need_count)
            put(&list, graph->nodes[at], 0);
    return give(&list, count, 0);
}

API cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || !count || !from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = list_of(from, to, count);
    for (size_t at = 0; at < graph->count; at++)
        for (size_t need = 0; need < graph->nodes[at]->need_count; need++)
            put(&list, graph->nodes[at]->needs[need], graph->nodes[at]);
    return give(&list, count, edges);
}

API cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, 0, count);
}

API cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
    const struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = list_of(nodes, 0, count);
    for (size_t at = 0; at < node->need_count; at++)
        put(&list, node->needs[at], 0);
    return give(&list, count, edges);
}

API cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return cuGraphNodeGetDependencies_v2(node, nodes, 0, count);
}

API cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
    const struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = list_of(nodes, 0, count);
    for (size_t at = 0; at < node->graph->count; at++)
        for (size_t need = 0; need < node->graph->nodes[at]->need_count; need++)
            if (node->graph->nodes[at]->needs[need] == node)
                put(&list, node->graph->nodes[at], 0);
    return give(&list, count, edges);
}

API cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return cuGraphNodeGetDependentNodes_v2(node, nodes, 0, count);
}

API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
    const struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->content.type;
    return CUDA_SUCCESS;
}

API cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph *graph)
{
    const struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->graph->handle;
    return CUDA_SUCCESS;
}

API cuGraphNodeGetLocalId(CUgraphNode handle, unsigned *id)
{
    const struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = node->id;
    return CUDA_SUCCESS;
}

API cuGraphGetId(CUgraph handle, unsigned *id)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = graph->id;
    return CUDA_SUCCESS;
}
