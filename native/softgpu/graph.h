/* Graphs: what a node does (content.c), dependencies between nodes (graph.c), and instances that run (instance.c). */
#pragma once
#include "softgpu.h"

struct graph;

/* What a node does. A copy has its own parameters, and its own inner graph. */
struct content {
    CUgraphNodeType type;
    union {
        struct {
            struct grid grid;
            unsigned char *parameters;
            void **values;
        } kernel;
        CUDA_MEMCPY_NODE_PARAMS copy;
        CUDA_MEMSET_NODE_PARAMS_v2 fill;
        CUDA_HOST_NODE_PARAMS_v2 host;
        CUevent event;
        CUDA_MEM_ALLOC_NODE_PARAMS_v2 alloc;
        CUdeviceptr freed;
        struct graph *inner;
    };
};
/* A refused change leaves the content as it was. */
CUresult content_set(struct content *content, CUgraphNodeParams *wanted);
CUresult content_get(const struct content *content, CUgraphNodeParams *found);
CUresult content_of_work(struct content *content, const struct work *work);
bool content_copy(struct content *to, const struct content *from, bool handles);
void content_clear(struct content *content);
CUresult content_submit(const struct content *content, struct stream *stream);

struct node {
    CUgraphNode handle; /* 0 in an instance */
    struct graph *graph;
    unsigned id;  /* in its graph; copies of the graph keep it */
    size_t place; /* in a topological order */
    bool disabled;
    struct content content;
    struct node **needs;
    size_t need_count;
};

struct graph {
    CUgraph handle;
    unsigned id, origin; /* origin: the id of the graph that it is a copy of */
    bool inner;          /* belongs to a node */
    struct node **nodes;
    size_t count, room;
    unsigned next_node;
    struct keep keep;
};
/* A copy whose nodes are in topological order; null if there is a cycle or no memory. */
struct graph *graph_copy(const struct graph *graph, bool handles);
void graph_free(struct graph *graph);
struct node *graph_find(const struct graph *graph, unsigned id);
