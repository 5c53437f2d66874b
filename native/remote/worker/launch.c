/* Launches, kernel nodes, and waiting. */
#include "worker.h"
#include <stdlib.h>

/* The parameters of a launch as the driver takes them in one buffer. */
struct arguments {
    size_t size;
    void *extra[5];
};

static void take_arguments(struct request *r, struct arguments *arguments)
{
    void *buffer = take_block(r, &arguments->size);
    arguments->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    arguments->extra[1] = buffer;
    arguments->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    arguments->extra[3] = &arguments->size;
    arguments->extra[4] = CU_LAUNCH_PARAM_END;
}

static void **extra_of(struct arguments *arguments)
{
    return arguments->size ? arguments->extra : NULL;
}

/* Attributes with addresses of this process inside. */
static bool is_safe(CUlaunchAttributeID id)
{
    return id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT && id != CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
           && id != CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE && id != CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
}

void do_launch(struct request *r)
{
    struct wire_shape s;
    struct arguments arguments;
    size_t size = 0;
    CUlaunchAttribute *attributes = NULL;
    CUfunction function = take_handle(r);
    CUstream stream = take_stream(r);
    take(r, &s, sizeof s);
    if (r->head.op == OP_launch_ex)
        attributes = take_block(r, &size);
    take_arguments(r, &arguments);
    require(r, size % sizeof *attributes == 0);
    unsigned count = (unsigned)(size / sizeof *attributes);
    for (unsigned i = 0; i < count; i++)
        require(r, is_safe(attributes[i].id));
    if (r->status)
        return;
    CUlaunchConfig config = {s.grid[0],  s.grid[1], s.grid[2], s.block[0], s.block[1],
                             s.block[2], s.shared,  stream,    attributes, count};
    if (count)
        r->status = (int)real_cuda.cuLaunchKernelEx(&config, function, NULL, extra_of(&arguments));
    else
        r->status = (int)real_cuda.cuLaunchKernel(function, s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1],
                                                  s.block[2], s.shared, stream, NULL, extra_of(&arguments));
}

void do_kernel_node(struct request *r)
{
    struct wire_shape s;
    struct arguments arguments;
    size_t count = 0;
    uint64_t fresh = 0;
    CUgraph graph = NULL;
    CUgraphExec instance = NULL;
    CUgraphNode node = NULL, *dependencies = NULL;
    if (r->head.op == OP_kernel_node) {
        fresh = take_u64(r);
        graph = take_handle(r);
        dependencies = (CUgraphNode *)take_handles(r, &count);
    } else {
        if (r->head.op == OP_kernel_node_set)
            instance = take_handle(r);
        node = take_handle(r);
    }
    CUfunction function = take_handle(r);
    take(r, &s, sizeof s);
    take_arguments(r, &arguments);
    if (r->status)
        return;
    const CUDA_KERNEL_NODE_PARAMS_v1 p = {function,   s.grid[0],  s.grid[1], s.grid[2], s.block[0],
                                          s.block[1], s.block[2], s.shared,  NULL,      extra_of(&arguments)};
    if (instance)
        r->status = (int)real_cuda.cuGraphExecKernelNodeSetParams(instance, node, &p);
    else if (!graph)
        r->status = (int)real_cuda.cuGraphKernelNodeSetParams(node, &p);
    else
        r->status = (int)real_cuda.cuGraphAddKernelNode(&node, graph, dependencies, count, &p);
    if (graph && !r->status)
        handle_set(fresh, node);
}

/* The copies that the client expects to make next come with the answer. */
void do_synchronize(struct request *r)
{
    size_t size;
    uint64_t (*wanted)[3] = take_block(r, &size);
    require(r, size % sizeof *wanted == 0 && size / sizeof *wanted <= FORESEEN);
    if (!r->status)
        r->status = (int)real_cuda.cuCtxSynchronize();
    for (size_t i = 0; i < size / sizeof *wanted && !r->status; i++) {
        char data[FORESEEN_MAX];
        bool is_good = wanted[i][2] <= sizeof data && !real_cuda.cuMemcpyDtoH_v2(data, wanted[i][1], wanted[i][2]);
        answer_u64(r, wanted[i][0]);
        answer_block(r, data, is_good ? wanted[i][2] : 0);
    }
}

void do_fence(struct request *r)
{
    r->status = (int)real_cuda.cuCtxSynchronize();
}

void do_pointer_attribute(struct request *r)
{
    uint64_t attribute = take_u64(r), pointer = take_u64(r), value[8] = {0};
    if (!r->status)
        r->status = (int)real_cuda.cuPointerGetAttribute(value, (CUpointer_attribute)attribute, pointer);
    bool is_handle = attribute == CU_POINTER_ATTRIBUTE_CONTEXT || attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    answer_u64(r, is_handle ? handle_find((void *)value[0]) : value[0]);
}

void do_pool_attribute(struct request *r)
{
    uint64_t set = take_u64(r);
    CUmemoryPool pool = take_handle(r);
    uint64_t attribute = take_u64(r), value = take_u64(r);
    if (r->status)
        return;
    r->status = (int)(set ? real_cuda.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, &value)
                          : real_cuda.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, &value));
    answer_u64(r, value);
}

void do_occupancy(struct request *r)
{
    int grid = 0, block = 0;
    CUfunction function = take_handle(r);
    uint64_t shared = take_u64(r), most = take_u64(r), flags = take_u64(r);
    if (r->status)
        return;
    r->status = (int)real_cuda.cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, function, NULL, shared,
                                                                         (int)most, (unsigned)flags);
    answer_u64(r, (uint32_t)grid);
    answer_u64(r, (uint32_t)block);
}
