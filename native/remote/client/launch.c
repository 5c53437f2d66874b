/* Launches and kernel nodes. Parameters travel as the one buffer that the driver makes of them anyway. */
#include "client.h"
#include <stdlib.h>

/* The buffer of a launch: the caller's own, or laid out from pointers to single parameters. */
struct arguments {
    const void *data;
    size_t size;
    void *made; /* to be freed */
};

static CUresult from_extra(struct arguments *arguments, void **extra)
{
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            arguments->data = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            arguments->size = *(size_t *)extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return arguments->data || !arguments->size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult from_parameters(struct arguments *arguments, const void *function, void **parameters)
{
    struct layout layout;
    CUresult status = layout_find(handle_number(function), &layout);
    if (status)
        return status;
    if (layout.count && !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    char *made = calloc(1, layout.total + 1);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < layout.count; i++)
        memcpy(made + layout.parts[i].offset, parameters[i], layout.parts[i].size);
    *arguments = (struct arguments){made, layout.total, made};
    return CUDA_SUCCESS;
}

/* Any of the parameters may be the address of host memory. */
static CUresult note_addresses(const struct arguments *arguments)
{
    CUresult status = CUDA_SUCCESS;
    for (size_t at = 0; at + sizeof(uint64_t) <= arguments->size && !status; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)arguments->data + at, sizeof word);
        status = host_note(word);
    }
    return status;
}

static CUresult arguments_of(struct arguments *arguments, const void *function, void **parameters, void **extra)
{
    *arguments = (struct arguments){0};
    CUresult status = extra ? from_extra(arguments, extra) : from_parameters(arguments, function, parameters);
    return status ? status : note_addresses(arguments);
}

/* What can be seen to be wrong is refused at once, as the driver does. */
static CUresult check_shape(const struct wire_shape *shape)
{
    CUdevice device;
    CUresult status = cuCtxGetDevice(&device);
    if (!status)
        status = facts_device(device);
    if (status)
        return status;
    const int32_t *limits = facts->device[device].attributes;
    uint64_t threads = (uint64_t)shape->block[0] * shape->block[1] * shape->block[2];
    if (!threads || threads > (uint64_t)limits[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK])
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 3; i++)
        if (shape->block[i] > (uint32_t)limits[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i] || !shape->grid[i]
            || shape->grid[i] > (uint32_t)limits[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i])
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult launch(const void *function, const struct wire_shape *shape, CUstream stream,
                       const CUlaunchAttribute *attributes, size_t attribute_count, void **parameters, void **extra)
{
    struct message m;
    struct arguments arguments;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = check_shape(shape);
    if (!status)
        status = arguments_of(&arguments, function, parameters, extra);
    if (!status)
        status = host_send();
    if (!status)
        status = (CUresult)message_begin(&m, attribute_count ? OP_launch_ex : OP_launch);
    if (status)
        return status;
    put_u64(&m, handle_number(function));
    put_u64(&m, stream_number(stream));
    put(&m, shape, sizeof *shape);
    if (attribute_count)
        put_block(&m, attributes, attribute_count * sizeof *attributes);
    put_u64(&m, arguments.size);
    put(&m, arguments.data, arguments.size);
    free(arguments.made);
    return (CUresult)message_send(&m);
}

API cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                   CUstream stream, void **parameters, void **extra)
{
    const struct wire_shape shape = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, 0};
    return launch(function, &shape, stream, NULL, 0, parameters, extra);
}

/* Attributes with handles or results inside. */
static bool has_pointers(CUlaunchAttributeID id)
{
    return id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
           || id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE || id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (has_pointers(config->attrs[i].id))
            return CUDA_ERROR_NOT_SUPPORTED;
    const struct wire_shape shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                                     {config->blockDimX, config->blockDimY, config->blockDimZ},
                                     config->sharedMemBytes,
                                     0};
    return launch(function, &shape, config->hStream, config->attrs, config->numAttrs, parameters, extra);
}

API cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                              unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                              CUstream stream, void **parameters)
{
    const struct wire_shape shape = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, 0};
    const CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    return launch(function, &shape, stream, &cooperative, 1, parameters, NULL);
}

API cuGraphLaunch(CUgraphExec instance, CUstream stream)
{
    CUresult status = host_send();
    return status ? status : ask_cuGraphLaunch(instance, stream);
}

/* ---- kernel nodes ---- */

static CUresult put_node(struct message *m, const CUDA_KERNEL_NODE_PARAMS_v1 *p, const struct arguments *arguments)
{
    const struct wire_shape shape = {
        {p->gridDimX, p->gridDimY, p->gridDimZ}, {p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, 0};
    put_u64(m, handle_number(p->func));
    put(m, &shape, sizeof shape);
    put_u64(m, arguments->size);
    put(m, arguments->data, arguments->size);
    free(arguments->made);
    return (CUresult)message_send(m);
}

static CUresult begin_node(struct message *m, int op, const CUDA_KERNEL_NODE_PARAMS_v1 *p, struct arguments *arguments)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = arguments_of(arguments, p->func, p->kernelParams, p->extra);
    return status ? status : (CUresult)message_begin(m, op);
}

API cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    struct message m;
    struct arguments arguments;
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = begin_node(&m, OP_kernel_node, p, &arguments);
    if (status)
        return status;
    *node = (CUgraphNode)put_new_handle(&m);
    put_u64(&m, handle_number(graph));
    put_handles(&m, (void *const *)dependencies, count);
    return put_node(&m, p, &arguments);
}

API cuGraphExecKernelNodeSetParams(CUgraphExec instance, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    struct message m;
    struct arguments arguments;
    CUresult status = begin_node(&m, OP_kernel_node_set, p, &arguments);
    if (status)
        return status;
    put_u64(&m, handle_number(instance));
    put_u64(&m, handle_number(node));
    return put_node(&m, p, &arguments);
}

API cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    struct message m;
    struct arguments arguments;
    CUresult status = begin_node(&m, OP_kernel_node_change, p, &arguments);
    if (status)
        return status;
    put_u64(&m, handle_number(node));
    return put_node(&m, p, &arguments);
}

static const CUDA_KERNEL_NODE_PARAMS_v1 *first_version(const CUDA_KERNEL_NODE_PARAMS *p,
                                                       CUDA_KERNEL_NODE_PARAMS_v1 *old)
{
    if (!p)
        return NULL;
    *old = (CUDA_KERNEL_NODE_PARAMS_v1){p->func ? p->func : (CUfunction)p->kern,
                                        p->gridDimX,
                                        p->gridDimY,
                                        p->gridDimZ,
                                        p->blockDimX,
                                        p->blockDimY,
                                        p->blockDimZ,
                                        p->sharedMemBytes,
                                        p->kernelParams,
                                        p->extra};
    return old;
}

API cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_KERNEL_NODE_PARAMS *p)
{
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    return cuGraphAddKernelNode(node, graph, dependencies, count, first_version(p, &old));
}

API cuGraphExecKernelNodeSetParams_v2(CUgraphExec instance, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    return cuGraphExecKernelNodeSetParams(instance, node, first_version(p, &old));
}

API cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    return cuGraphKernelNodeSetParams(node, first_version(p, &old));
}

API cuGraphInstantiate_v2(CUgraphExec *instance, CUgraph graph, CUgraphNode *wrong, char *log, size_t room)
{
    if (wrong)
        *wrong = NULL;
    if (log && room)
        *log = 0;
    return cuGraphInstantiateWithFlags(instance, graph, 0);
}

API cuGraphInstantiateWithParams(CUgraphExec *instance, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    const cuuint64_t upload = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    parameters->hErrNode_out = NULL;
    parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    CUresult status = cuGraphInstantiateWithFlags(instance, graph, parameters->flags & ~upload);
    if (!status && parameters->flags & upload)
        status = cuGraphUpload(*instance, parameters->hUploadStream);
    if (status)
        parameters->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    return status;
}
