/* Copies of lines, rectangles and boxes.
 *
 * Memory of this process goes packed, in pieces of some rows. Before that the other end is looked at: of a box that is
 * not on the device, nothing here is read or written. */
#include "client.h"
#include <stdlib.h>

enum { SIDE_END = 1 << 30 };

struct end {
    enum wire_place place;
    uint64_t where; /* an address, or an array's handle */
    uint64_t x, y, z, pitch, height;
};

struct box {
    struct end from, to;
    uint64_t width, height, depth;
};

/* ---- what the program asks for ---- */

static CUresult end_of(struct end *end, CUmemorytype kind, const void *host, CUdeviceptr device, CUarray array)
{
    struct range range;
    switch (kind) {
    case CU_MEMORYTYPE_HOST:
        end->place = PLACE_MESSAGE;
        end->where = (uintptr_t)host;
        break;
    case CU_MEMORYTYPE_ARRAY:
        end->place = PLACE_ARRAY;
        end->where = handle_number(array);
        break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        end->where = device;
        end->place = range_find(device, &range) && !range.host ? PLACE_DEVICE : PLACE_MESSAGE;
        if (end->place == PLACE_MESSAGE && kind == CU_MEMORYTYPE_DEVICE && !range_find(device, &range))
            return CUDA_ERROR_INVALID_VALUE;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return end->where ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* How far an end reaches, from its address on; false: so far that nothing does. */
static bool reach(const struct box *box, const struct end *end, uint64_t *bytes)
{
    uint64_t rows;
    bool is_one_row = box->height == 1 && box->depth == 1 && !end->y && !end->z;
    if (end->x >= SIDE_END || end->y >= SIDE_END || end->z >= SIDE_END || end->pitch >= SIDE_END
        || end->height >= SIDE_END || (!is_one_row && end->pitch < end->x + box->width))
        return false;
    if ((box->depth > 1 || end->z) && end->height < end->y + box->height)
        return false;
    return !__builtin_mul_overflow(end->z + box->depth - 1, end->height, &rows)
           && !__builtin_add_overflow(rows, end->y + box->height - 1, &rows)
           && !__builtin_mul_overflow(rows, end->pitch, bytes)
           && !__builtin_add_overflow(*bytes, end->x + box->width, bytes);
}

static unsigned element_size(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    switch (shape->Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return shape->NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2 * shape->NumChannels;
    default: return 4 * shape->NumChannels;
    }
}

static CUresult check_array(const struct box *box, const struct end *end)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {0};
    CUresult status = cuArray3DGetDescriptor_v2(&shape, (CUarray)(uintptr_t)end->where);
    if (status)
        return status;
    bool fits = end->x + box->width <= (uint64_t)shape.Width * element_size(&shape)
                && end->y + box->height <= (shape.Height ? shape.Height : 1)
                && end->z + box->depth <= (shape.Depth ? shape.Depth : 1);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_end(const struct box *box, const struct end *end)
{
    struct range range;
    uint64_t bytes;
    if (end->place == PLACE_ARRAY)
        return check_array(box, end);
    if (!reach(box, end, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    bool is_known = end->place == PLACE_DEVICE && range_find(end->where, &range);
    bool fits = !is_known || bytes <= range.size - (end->where - range.base);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult read_box(struct box *box, const CUDA_MEMCPY3D *copy)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    *box = (struct box){
        .from = {.x = copy->srcXInBytes, .y = copy->srcY, .z = copy->srcZ},
        .to = {.x = copy->dstXInBytes, .y = copy->dstY, .z = copy->dstZ},
        .width = copy->WidthInBytes,
        .height = copy->Height,
        .depth = copy->Depth,
    };
    box->from.pitch = copy->srcPitch;
    box->from.height = copy->srcHeight;
    box->to.pitch = copy->dstPitch;
    box->to.height = copy->dstHeight;
    if (!box->width || !box->height || !box->depth)
        return CUDA_SUCCESS;
    if (box->width >= SIDE_END || box->height >= SIDE_END || box->depth >= SIDE_END)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = end_of(&box->from, copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray);
    if (!status)
        status = end_of(&box->to, copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray);
    if (!status)
        status = check_end(box, &box->from);
    return status ? status : check_end(box, &box->to);
}

/* ---- messages ---- */

static void put_end(struct message *m, const struct end *end)
{
    put_u64(m, end->place);
    put_u64(m, end->place == PLACE_MESSAGE ? 0 : end->where);
    put_u64(m, end->x);
    put_u64(m, end->y);
    put_u64(m, end->z);
    put_u64(m, end->pitch);
    put_u64(m, end->height);
}

static void put_box(struct message *m, const struct box *box)
{
    put_end(m, &box->from);
    put_end(m, &box->to);
    put_u64(m, box->width);
    put_u64(m, box->height);
    put_u64(m, box->depth);
}

static char *row_of(const struct end *end, uint64_t y, uint64_t z)
{
    return (char *)(uintptr_t)end->where + ((end->z + z) * end->height + end->y + y) * end->pitch + end->x;
}

/* The part of a box that begins at a row and has some rows of one layer; at its end in a message it is packed. */
static struct box part_of(const struct box *box, uint64_t y, uint64_t z, uint64_t rows)
{
    struct box part = *box;
    struct end *ends[] = {&part.from, &part.to};
    part.height = rows;
    part.depth = 1;
    for (int i = 0; i < 2; i++) {
        if (ends[i]->place == PLACE_MESSAGE)
            *ends[i] = (struct end){.place = PLACE_MESSAGE};
        ends[i]->y += ends[i]->place == PLACE_MESSAGE ? 0 : y;
        ends[i]->z += ends[i]->place == PLACE_MESSAGE ? 0 : z;
    }
    return part;
}

static CUresult send_part(const struct box *box, CUstream stream, uint64_t y, uint64_t z, uint64_t rows, bool waits)
{
    struct message m;
    const struct box part = part_of(box, y, z, rows);
    int status = message_begin(&m, OP_box_in);
    if (status)
        return (CUresult)status;
    char *packed = malloc(rows * box->width);
    if (!packed)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t i = 0; i < rows; i++)
        memcpy(packed + i * box->width, row_of(&box->from, y + i, z), box->width);
    put_u64(&m, stream_number(stream));
    put_box(&m, &part);
    put_u64(&m, rows * box->width);
    status = waits ? message_call_with(&m, packed, rows * box->width)
                   : message_send_with(&m, packed, rows * box->width);
    free(packed);
    return (CUresult)status;
}

static CUresult receive_part(const struct box *box, CUstream stream, uint64_t y, uint64_t z, uint64_t rows)
{
    struct message m;
    const struct box part = part_of(box, y, z, rows);
    int status = message_begin(&m, OP_box_out);
    if (status)
        return (CUresult)status;
    char *packed = malloc(rows * box->width);
    struct landing *landing = packed ? landing_begin(packed, rows * box->width, false, NULL) : NULL;
    if (landing) {
        put_u64(&m, landing_cookie(landing));
        put_u64(&m, stream_number(stream));
        put_box(&m, &part);
        status = message_call(&m);
        landing_end(landing);
        for (uint64_t i = 0; i < rows && !status; i++)
            memcpy(row_of(&box->to, y + i, z), packed + i * box->width, box->width);
    }
    free(packed);
    return landing ? (CUresult)status : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The last piece of a copy that is waited for brings the errors of all. */
static CUresult through_messages(const struct box *box, CUstream stream, bool waits)
{
    bool is_in = box->from.place == PLACE_MESSAGE;
    uint64_t most = (is_in ? WIRE_PIECE : BOX_OUT_MAX) / box->width;
    CUresult status = most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* a row of more than a MiB */
    for (uint64_t z = 0; z < box->depth && !status; z++)
        for (uint64_t y = 0, rows; y < box->height && !status; y += rows) {
            rows = box->height - y < most ? box->height - y : most;
            bool is_last = z + 1 == box->depth && y + rows == box->height;
            status = is_in ? send_part(box, stream, y, z, rows, waits && is_last)
                           : receive_part(box, stream, y, z, rows);
        }
    return status;
}

/* Host memory that both sides have at the same address: what a graph copies again and again. */
static CUresult to_shared(struct end *end)
{
    struct range range;
    if (end->place != PLACE_MESSAGE)
        return CUDA_SUCCESS;
    if (!range_find(end->where, &range) || !range.host)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    end->place = PLACE_HOST;
    return host_note(end->where);
}

static CUresult both_to_shared(struct box *box)
{
    CUresult status = to_shared(&box->from);
    return status ? status : to_shared(&box->to);
}

static CUresult on_the_worker(const struct box *box, CUstream stream, bool waits)
{
    struct message m;
    int status = host_send();
    if (!status)
        status = message_begin(&m, OP_box);
    if (status)
        return (CUresult)status;
    put_u64(&m, stream_number(stream));
    put_box(&m, box);
    return (CUresult)(waits ? message_call(&m) : message_send(&m));
}

static CUresult between_hosts(const struct box *box, CUstream stream)
{
    CUresult status = cuStreamSynchronize(stream);
    for (uint64_t z = 0; z < box->depth && !status; z++)
        for (uint64_t y = 0; y < box->height; y++)
            memmove(row_of(&box->to, y, z), row_of(&box->from, y, z), box->width);
    return status;
}

static CUresult copy_box(const CUDA_MEMCPY3D *copy, CUstream stream, bool waits)
{
    struct box box;
    CUresult status = read_box(&box, copy);
    if (status || !box.width || !box.height || !box.depth)
        return status;
    bool from_here = box.from.place == PLACE_MESSAGE, to_here = box.to.place == PLACE_MESSAGE, captured;
    status = stream_is_captured(stream, &captured);
    if (!status && captured)
        status = both_to_shared(&box);
    if (status)
        return status;
    if (captured || (!from_here && !to_here))
        return on_the_worker(&box, stream, waits);
    return from_here && to_here ? between_hosts(&box, stream) : through_messages(&box, stream, waits);
}

CUresult copy_captured(uint64_t to, uint64_t from, size_t size, CUstream stream)
{
    struct range range;
    struct box box = {.from = {.where = from}, .to = {.where = to}, .width = size, .height = 1, .depth = 1};
    box.from.place = range_find(from, &range) && !range.host ? PLACE_DEVICE : PLACE_MESSAGE;
    box.to.place = range_find(to, &range) && !range.host ? PLACE_DEVICE : PLACE_MESSAGE;
    CUresult status = size < SIDE_END ? both_to_shared(&box) : CUDA_ERROR_INVALID_VALUE;
    return status ? status : on_the_worker(&box, stream, false);
}

API cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
    return copy_box(copy, NULL, true);
}

API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    return copy_box(copy, stream, false);
}

static const CUDA_MEMCPY3D *as_box(const CUDA_MEMCPY2D *flat, CUDA_MEMCPY3D *box)
{
    if (!flat)
        return NULL;
    *box = (CUDA_MEMCPY3D){
        .srcXInBytes = flat->srcXInBytes,
        .srcY = flat->srcY,
        .srcMemoryType = flat->srcMemoryType,
        .srcHost = flat->srcHost,
        .srcDevice = flat->srcDevice,
        .srcArray = flat->srcArray,
        .srcPitch = flat->srcPitch ? flat->srcPitch : flat->WidthInBytes + flat->srcXInBytes,
        .dstXInBytes = flat->dstXInBytes,
        .dstY = flat->dstY,
        .dstMemoryType = flat->dstMemoryType,
        .dstHost = flat->dstHost,
        .dstDevice = flat->dstDevice,
        .dstArray = flat->dstArray,
        .dstPitch = flat->dstPitch ? flat->dstPitch : flat->WidthInBytes + flat->dstXInBytes,
        .WidthInBytes = flat->WidthInBytes,
        .Height = flat->Height,
        .Depth = 1,
    };
    return box;
}

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
    CUDA_MEMCPY3D box;
    return copy_box(as_box(copy, &box), NULL, true);
}

API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
    return cuMemcpy2D_v2(copy);
}

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    CUDA_MEMCPY3D box;
    return copy_box(as_box(copy, &box), stream, false);
}

static CUresult copy_line(CUarray array, size_t offset, const void *host, size_t size, bool to_array, CUstream stream,
                          bool waits)
{
    CUDA_MEMCPY3D copy = {.WidthInBytes = size, .Height = 1, .Depth = 1};
    copy.srcMemoryType = to_array ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
    copy.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
    copy.srcHost = host;
    copy.dstHost = (void *)host;
    copy.srcArray = copy.dstArray = array;
    *(to_array ? &copy.dstXInBytes : &copy.srcXInBytes) = offset;
    return copy_box(&copy, stream, waits);
}

API cuMemcpyHtoA_v2(CUarray array, size_t offset, const void *host, size_t size)
{
    return copy_line(array, offset, host, size, true, NULL, true);
}

API cuMemcpyHtoAAsync_v2(CUarray array, size_t offset, const void *host, size_t size, CUstream stream)
{
    return copy_line(array, offset, host, size, true, stream, false);
}

API cuMemcpyAtoH_v2(void *host, CUarray array, size_t offset, size_t size)
{
    return copy_line(array, offset, host, size, false, NULL, true);
}

API cuMemcpyAtoHAsync_v2(void *host, CUarray array, size_t offset, size_t size, CUstream stream)
{
    return copy_line(array, offset, host, size, false, stream, false);
}

/* ---- nodes of graphs ---- */

static CUresult begin_node(struct message *m, int op, const CUDA_MEMCPY3D *copy, struct box *box)
{
    CUresult status = read_box(box, copy);
    if (!status && !(box->width && box->height && box->depth))
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = both_to_shared(box);
    if (status)
        return status == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? CUDA_ERROR_NOT_SUPPORTED : status;
    return (CUresult)message_begin(m, op);
}

API cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         const CUDA_MEMCPY3D *copy, CUcontext context)
{
    struct message m;
    struct box box;
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = begin_node(&m, OP_box_node, copy, &box);
    if (status)
        return status;
    *node = (CUgraphNode)put_new_handle(&m);
    put_u64(&m, handle_number(graph));
    put_handles(&m, (void *const *)dependencies, count);
    put_u64(&m, handle_number(context));
    put_box(&m, &box);
    return (CUresult)message_send(&m);
}

API cuGraphExecMemcpyNodeSetParams(CUgraphExec instance, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    struct message m;
    struct box box;
    CUresult status = begin_node(&m, OP_box_node_set, copy, &box);
    if (status)
        return status;
    put_u64(&m, handle_number(instance));
    put_u64(&m, handle_number(node));
    put_u64(&m, handle_number(context));
    put_box(&m, &box);
    return (CUresult)message_call(&m);
}

API cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy)
{
    struct message m;
    struct box box;
    CUresult status = begin_node(&m, OP_box_node_change, copy, &box);
    if (status)
        return status;
    put_u64(&m, handle_number(node));
    put_box(&m, &box);
    return (CUresult)message_call(&m);
}
