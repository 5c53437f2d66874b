/* Graphs as their authors make them: nodes and their dependencies. */
#include "graph.h"
#include <stdlib.h>
#include <string.h>

/* ---- creation and destruction ---- */
static struct graph *graph_new(bool handle)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return 0;
    graph->id = (unsigned)next_id();
    graph->handle = handle ? handle_new(HANDLE_GRAPH, graph) : 0;
    if (!handle || graph->handle)
        return graph;
    free(graph);
    return 0;
}

static void node_free(struct node *node)
{
    handle_drop(HANDLE_NODE, node->handle);
    content_clear(&node->content);
    free(node->needs);
    free(node);
}

void graph_free(struct graph *graph)
{
    handle_drop(HANDLE_GRAPH, graph->handle);
    for (size_t at = 0; at < graph->count; at++)
        node_free(graph->nodes[at]);
    keep_clear(&graph->keep);
    free(graph->nodes);
    free(graph);
}

static bool make_room(struct graph *graph)
{
    if (graph->count < graph->room)
        return true;
    size_t room = graph->room ? 2 * graph->room : 16;
    struct node **larger = realloc(graph->nodes, room * sizeof *larger);
    if (!larger)
        return false;
    graph->nodes = larger;
    graph->room = room;
    return true;
}

/* An empty node at the graph's end. */
static struct node *append(struct graph *graph, unsigned id, bool handle)
{
    struct node *node = make_room(graph) ? calloc(1, sizeof *node) : 0;
    if (!node)
        return 0;
    *node = (struct node){.graph = graph, .id = id, .content = {.type = CU_GRAPH_NODE_TYPE_EMPTY}};
    node->handle = handle ? handle_new(HANDLE_NODE, node) : 0;
    graph->nodes[graph->count++] = node;
    graph->next_node = id >= graph->next_node ? id + 1 : graph->next_node;
    return node;
}

static bool need(struct node *node, struct node *other)
{
    struct node **larger = realloc(node->needs, (node->need_count + 1) * sizeof *larger);
    if (!larger)
        return false;
    node->needs = larger;
    node->needs[node->need_count++] = other;
    return true;
}

static size_t find_need(const struct node *node, const struct node *other)
{
    size_t at = 0;
    while (at < node->need_count && node->needs[at] != other)
        at++;
    return at;
}

struct node *graph_find(const struct graph *graph, unsigned id)
{
    if (id < graph->count && graph->nodes[id]->id == id) /* almost always the case */
        return graph->nodes[id];
    for (size_t at = 0; at < graph->count; at++)
        if (graph->nodes[at]->id == id)
            return graph->nodes[at];
    return 0;
}

/* ---- copies, in topological order ---- */
static const size_t NOWHERE = SIZE_MAX;

static bool can_go(const struct node *node)
{
    bool good = node->place == NOWHERE;
    for (size_t at = 0; good && at < node->need_count; at++)
        good = node->needs[at]->place != NOWHERE;
    return good;
}

/* Give every node its place: in the order of addition, unless a node depends on a later one. False if there is a
 * cycle. */
static bool arrange(const struct graph *graph)
{
    size_t placed = 0, before;
    for (size_t at = 0; at < graph->count; at++)
        graph->nodes[at]->place = NOWHERE;
    do {
        before = placed;
        for (size_t at = 0; at < graph->count; at++)
            if (can_go(graph->nodes[at]))
                graph->nodes[at]->place = placed++;
    } while (placed < graph->count && placed > before);
    return placed == graph->count;
}

static bool copy_node(struct graph *copy, const struct node *node, bool handles)
{
    struct node *made = append(copy, node->id, handles);
    bool good = made && content_copy(&made->content, &node->content, handles);
    if (made && !good)
        made->content = (struct content){.type = CU_GRAPH_NODE_TYPE_EMPTY};
    for (size_t at = 0; good && at < node->need_count; at++)
        good = need(made, copy->nodes[node->needs[at]->place]);
    return good;
}

struct graph *graph_copy(const struct graph *graph, bool handles)
{
    const struct node **order = calloc(graph->count + 1, sizeof *order);
    struct graph *copy = order && arrange(graph) ? graph_new(handles) : 0;
    for (size_t at = 0; copy && at < graph->count; at++)
        order[graph->nodes[at]->place] = graph->nodes[at];
    bool good = copy && keep_copy(&copy->keep, &graph->keep);
    for (size_t at = 0; good && at < graph->count; at++)
        good = copy_node(copy, order[at], handles);
    free(order);
    if (copy && !good)
        graph_free(copy);
    if (!good)
        return 0;
    copy->origin = graph->id;
    copy->next_node = graph->next_node;
    return copy;
}

API cuGraphCreate(CUgraph *made, unsigned flags)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!made || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph *graph = graph_new(true);
    *made = graph ? graph->handle : 0;
    return graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphDestroy(CUgraph handle)
{
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || graph->inner)
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(graph);
    return CUDA_SUCCESS;
}

API cuGraphClone(CUgraph *made, CUgraph handle)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    struct graph *copy = graph && made ? graph_copy(graph, true) : 0;
    if (copy)
        *made = copy->handle;
    return copy ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode handle, CUgraph clone)
{
    const struct node *node = handle_get(HANDLE_NODE, handle);
    const struct graph *graph = handle_get(HANDLE_GRAPH, clone);
    const struct node *twin = node && graph && graph->origin == node->graph->id ? graph_find(graph, node->id) : 0;
    if (!found || !twin)
        return CUDA_ERROR_INVALID_VALUE;
    *found = twin->handle;
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */
static struct node *node_of(const struct graph *graph, CUgraphNode handle)
{
    struct node *node = handle_get(HANDLE_NODE, handle);
    return node && node->graph == graph ? node : 0;
}

static CUresult add(struct graph *graph, const CUgraphNode *dependencies, size_t count, struct node **made)
{
    if (!graph || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < count; at++)
        if (!node_of(graph, dependencies[at]))
            return CUDA_ERROR_INVALID_VALUE;
    *made = append(graph, graph->next_node, true);
    bool good = *made && (*made)->handle;
    for (size_t at = 0; good && at < count; at++)
        good = need(*made, node_of(graph, dependencies[at]));
    if (*made && !good)
        node_free(graph->nodes[--graph->count]);
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Only dependencies between whole nodes are supported: a kernel cannot be waited for partially. */
static bool plain(const CUgraphEdgeData *edges, size_t count)
{
    static const CUgraphEdgeData none;
    bool good = true;
    for (size_t at = 0; edges && good && at < count; at++)
        good = !memcmp(&edges[at], &none, sizeof none);
    return good;
}

API cuGraphAddNode_v2(CUgraphNode *made, CUgraph handle, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                      size_t count, CUgraphNodeParams *wanted)
{
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    struct content content = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    struct node *node;
    if (!graph || !made || !wanted)
        return CUDA_ERROR_INVALID_VALUE;
    if (!plain(edges, count))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (wanted->type == CU_GRAPH_NODE_TYPE_GRAPH && wanted->graph.graph == handle)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = content_set(&content, wanted);
    if (!status && (status = add(graph, dependencies, count, &node)))
        content_clear(&content);
    if (status)
        return status;
    node->content = content;
    *made = node->handle;
    return CUDA_SUCCESS;
}

CUresult graph_add_work(CUgraph handle, const CUgraphNode *dependencies, size_t count, const struct work *work,
                        CUgraphNode *made)
{
    struct node *node;
    CUresult status = add(handle_get(HANDLE_GRAPH, handle), dependencies, count, &node);
    if (!status)
        status = content_of_work(&node->content, work);
    if (!status)
        *made = node->handle;
    return status;
}

static void remove_need(struct node *node, const struct node *other)
{
    size_t at = find_need(node, other);
    if (at < node->need_count)
        node->needs[at] = node->needs[--node->need_count];
}

API cuGraphDestroyNode(CUgraphNode handle)
{
    struct node *node = handle_get(HANDLE_NODE, handle);
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph *graph = node->graph;
    size_t kept = 0;
    for (size_t at = 0; at < graph->count; at++) {
        remove_need(graph->nodes[at], node);
        if (graph->nodes[at] != node)
            graph->nodes[kept++] = graph->nodes[at];
    }
    graph->count = kept;
    node_free(node);
    return CUDA_SUCCESS;
}

API cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                              const CUgraphEdgeData *edges, size_t count)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (!graph || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!plain(edges, count))
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t at = 0; at < count; at++) {
        struct node *first = node_of(graph, from[at]), *second = node_of(graph, to[at]);
        if (!first || !second || first == second || find_need(second, first) < second->need_count)
            return CUDA_ERROR_INVALID_VALUE;
        if (!need(second, first))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

API cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                 const CUgraphEdgeData *edges, size_t count)
{
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    (void)edges;
    if (!graph || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < count; at++) {
        struct node *first = node_of(graph, from[at]), *second = node_of(graph, to[at]);
        if (!first || !second || find_need(second, first) == second->need_count)
            return CUDA_ERROR_INVALID_VALUE;
        remove_need(second, first);
    }
    return CUDA_SUCCESS;
}

/* ---- user objects ---- */
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
