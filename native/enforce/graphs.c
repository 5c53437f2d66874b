/* Memory nodes of graphs. The driver allocates their memory when the graph is first launched, where no memory limit can
 * be applied; so all of it is charged when the graph is instantiated, until that instance ends. */
#include "enforce.h"
#include <stdlib.h>

/* Child graphs of child graphs, and so on. */
enum { NESTED = 16 };

struct needed {
    uint64_t bytes[MG_PAGE_GPUS];
};

static CUresult add_nodes(struct needed *needed, CUgraph graph, int depth);

static CUresult add_memory(struct needed *needed, CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {0};
    CUresult status = cudaapi_real.cuGraphMemAllocNodeGetParams(node, &wanted);
    if (status)
        return status;
    int gpu = wanted.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_gpu(wanted.poolProps.location.id)
                                                                            : current_gpu();
    uint64_t bytes = gpu < 0 ? 0 : granules_round((unsigned)gpu, wanted.bytesize);
    if (gpu >= 0 && __builtin_add_overflow(needed->bytes[gpu], bytes, &needed->bytes[gpu]))
        needed->bytes[gpu] = UINT64_MAX;
    return CUDA_SUCCESS;
}

static CUresult add_node(struct needed *needed, CUgraphNode node, int depth)
{
    CUgraphNodeType type;
    CUgraph child;
    CUresult status = cudaapi_real.cuGraphNodeGetType(node, &type);
    if (!status && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return add_memory(needed, node);
    if (status || type != CU_GRAPH_NODE_TYPE_GRAPH)
        return status;
    status = cudaapi_real.cuGraphChildGraphNodeGetGraph(node, &child);
    return status ? status : add_nodes(needed, child, depth + 1);
}

static CUresult add_nodes(struct needed *needed, CUgraph graph, int depth)
{
    size_t count = 0;
    CUresult status = depth < NESTED ? cudaapi_real.cuGraphGetNodes(graph, 0, &count) : CUDA_ERROR_NOT_SUPPORTED;
    if (status || !count)
        return status;
    CUgraphNode *nodes = malloc(count * sizeof *nodes);
    if (!nodes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    status = cudaapi_real.cuGraphGetNodes(graph, nodes, &count);
    for (size_t at = 0; !status && at < count; at++)
        status = add_node(needed, nodes[at], depth);
    free(nodes);
    return status;
}

static void give_back(const struct needed *needed, unsigned gpus)
{
    for (unsigned gpu = 0; gpu < gpus; gpu++)
        if (needed->bytes[gpu])
            granules_give_back(gpu, needed->bytes[gpu]);
}

/* Charge all GPUs or none. */
static CUresult begin(struct needed *needed, CUgraph graph)
{
    *needed = (struct needed){{0}};
    CUresult status = graph ? add_nodes(needed, graph, 0) : CUDA_SUCCESS;
    for (unsigned gpu = 0; !status && gpu < MG_PAGE_GPUS; gpu++) {
        struct charge charge;
        if (needed->bytes[gpu])
            status = charge_begin_on(&charge, "cuGraphInstantiate", (int)gpu, needed->bytes[gpu]);
        if (status)
            give_back(needed, gpu);
    }
    return status;
}

static CUresult end(const struct needed *needed, CUresult status, const CUgraphExec *made)
{
    if (status) {
        give_back(needed, MG_PAGE_GPUS);
        return status;
    }
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        if (needed->bytes[gpu])
            ledger_put((struct holding){
                .kind = HOLDING_GRAPH, .gpu = gpu, .handle = (uintptr_t)*made, .bytes = needed->bytes[gpu]});
    return CUDA_SUCCESS;
}

#define INSTANTIATE(call)                                                                                              \
    ({                                                                                                                 \
        struct needed needed;                                                                                          \
        CUresult answer = begin(&needed, graph);                                                                       \
        answer ? answer : end(&needed, (call), made);                                                                  \
    })

API cuGraphInstantiate(CUgraphExec *made, CUgraph graph, CUgraphNode *bad, char *log, size_t room)
{
    return INSTANTIATE(cudaapi_real.cuGraphInstantiate(made, graph, bad, log, room));
}

API cuGraphInstantiate_v2(CUgraphExec *made, CUgraph graph, CUgraphNode *bad, char *log, size_t room)
{
    return INSTANTIATE(cudaapi_real.cuGraphInstantiate_v2(made, graph, bad, log, room));
}

API cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
    return INSTANTIATE(cudaapi_real.cuGraphInstantiateWithFlags(made, graph, flags));
}

API cuGraphInstantiateWithParams(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *wanted)
{
    return INSTANTIATE(cudaapi_real.cuGraphInstantiateWithParams(made, graph, wanted));
}

API cuGraphInstantiateWithParams_ptsz(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *wanted)
{
    return INSTANTIATE(cudaapi_real.cuGraphInstantiateWithParams_ptsz(made, graph, wanted));
}

/* The driver keeps the memory of graphs that ended for later graphs, until a call asks it to release the memory. */
API cuGraphExecDestroy(CUgraphExec graph)
{
    struct holding held;
    CUresult status = cudaapi_real.cuGraphExecDestroy(graph);
    while (!status && ledger_take(HOLDING_GRAPH, (uintptr_t)graph, &held)) {
        cudaapi_real.cuDeviceGraphMemTrim(gpu_device(held.gpu));
        granules_give_back(held.gpu, held.bytes);
    }
    return status;
}
