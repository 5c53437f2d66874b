/* Copies of lines, rectangles and boxes. What is packed goes through messages; other host memory is the client's own.
 */
#include "worker.h"
#include <stdlib.h>

enum { ROWS_END = 1 << 30 }; /* more than any box has in one direction, so that products fit into 64 bits */

/* One end, as the driver takes it. */
struct end {
    uint64_t place;
    uint64_t address;
    CUarray array;
    uint64_t x, y, z, pitch, height;
};

struct box {
    struct end from, to;
    uint64_t width, height, depth;
};

static void take_end(struct request *r, struct end *end)
{
    end->place = take_u64(r);
    end->array = end->place == PLACE_ARRAY ? take_handle(r) : NULL;
    end->address = end->place == PLACE_ARRAY ? 0 : take_u64(r);
    end->x = take_u64(r);
    end->y = take_u64(r);
    end->z = take_u64(r);
    end->pitch = take_u64(r);
    end->height = take_u64(r);
    require(r, end->place >= PLACE_MESSAGE && end->place <= PLACE_ARRAY);
}

/* Memory of the client has to be where the box is, and not only where it begins. */
static bool is_of_the_client(const struct end *end, const struct box *box)
{
    uint64_t rows, bytes;
    if (end->pitch > ROWS_END || end->x > ROWS_END || end->y > ROWS_END || end->z > ROWS_END || end->height > ROWS_END)
        return false;
    bool has_rows = box->height > 1 || box->depth > 1;
    if ((has_rows && end->pitch < end->x + box->width) || (box->depth > 1 && end->height < end->y + box->height))
        return false;
    if (__builtin_mul_overflow(end->z + box->depth - 1, end->height, &rows)
        || __builtin_add_overflow(rows, end->y + box->height - 1, &rows)
        || __builtin_mul_overflow(rows, end->pitch, &bytes)
        || __builtin_add_overflow(bytes, end->x + box->width, &bytes))
        return false;
    return host_has(end->address, bytes);
}

static void take_box(struct request *r, struct box *box)
{
    take_end(r, &box->from);
    take_end(r, &box->to);
    box->width = take_u64(r);
    box->height = take_u64(r);
    box->depth = take_u64(r);
    require(r, box->width && box->height && box->depth && box->width < ROWS_END && box->height < ROWS_END
                   && box->depth < ROWS_END);
    if (r->status)
        return;
    require(r, box->from.place != PLACE_HOST || is_of_the_client(&box->from, box));
    require(r, box->to.place != PLACE_HOST || is_of_the_client(&box->to, box));
}

static uint64_t packed_size(struct request *r, const struct box *box, uint64_t most)
{
    uint64_t size;
    bool fits = !__builtin_mul_overflow(box->width * box->height, box->depth, &size) && size <= most;
    require(r, fits);
    return fits ? size : 0;
}

static CUmemorytype kind_of(const struct end *end)
{
    return end->place == PLACE_ARRAY    ? CU_MEMORYTYPE_ARRAY
           : end->place == PLACE_DEVICE ? CU_MEMORYTYPE_DEVICE
                                        : CU_MEMORYTYPE_HOST;
}

/* `packed`: where the data of the end are that travels in a message. */
static CUDA_MEMCPY3D described(const struct box *box, char *packed)
{
    const struct end *from = &box->from, *to = &box->to;
    bool is_in = from->place == PLACE_MESSAGE, is_out = to->place == PLACE_MESSAGE;
    CUDA_MEMCPY3D copy = {
        .srcMemoryType = kind_of(from),
        .srcHost = is_in ? packed : (void *)from->address,
        .srcDevice = from->address,
        .srcArray = from->array,
        .srcXInBytes = from->x,
        .srcY = from->y,
        .srcZ = from->z,
        .srcPitch = is_in ? box->width : from->pitch,
        .srcHeight = is_in ? box->height : from->height,
        .dstMemoryType = kind_of(to),
        .dstHost = is_out ? packed : (void *)to->address,
        .dstDevice = to->address,
        .dstArray = to->array,
        .dstXInBytes = to->x,
        .dstY = to->y,
        .dstZ = to->z,
        .dstPitch = is_out ? box->width : to->pitch,
        .dstHeight = is_out ? box->height : to->height,
        .WidthInBytes = box->width,
        .Height = box->height,
        .Depth = box->depth,
    };
    return copy;
}

static bool is_packed(const struct end *end)
{
    return end->place == PLACE_MESSAGE && !end->x && !end->y && !end->z;
}

void do_box(struct request *r)
{
    struct box box;
    CUstream stream = take_stream(r);
    take_box(r, &box);
    require(r, box.from.place != PLACE_MESSAGE && box.to.place != PLACE_MESSAGE);
    if (r->status)
        return;
    const CUDA_MEMCPY3D copy = described(&box, NULL);
    r->status = (int)real_cuda.cuMemcpy3DAsync_v2(&copy, stream);
}

void do_box_in(struct request *r)
{
    struct box box;
    size_t got;
    CUstream stream = take_stream(r);
    take_box(r, &box);
    const char *data = take_block(r, &got);
    require(r, is_packed(&box.from) && box.to.place != PLACE_MESSAGE);
    uint64_t size = r->status ? 0 : packed_size(r, &box, WIRE_PIECE);
    require(r, data && got == size);
    char *room = r->status ? NULL : copies_room(r, size, stream);
    if (!room)
        return;
    memcpy(room, data, size);
    const CUDA_MEMCPY3D copy = described(&box, room);
    r->status = (int)real_cuda.cuMemcpy3DAsync_v2(&copy, stream);
}

void do_box_out(struct request *r)
{
    struct box box;
    uint64_t cookie = take_u64(r);
    CUstream stream = take_stream(r);
    take_box(r, &box);
    require(r, is_packed(&box.to) && box.from.place != PLACE_MESSAGE);
    uint64_t size = r->status ? 0 : packed_size(r, &box, BOX_OUT_MAX);
    char *room = r->status ? NULL : request_room(r, size, 1);
    if (!room)
        return;
    const CUDA_MEMCPY3D copy = described(&box, room);
    r->status = (int)real_cuda.cuMemcpy3DAsync_v2(&copy, stream);
    if (!r->status)
        r->status = (int)real_cuda.cuStreamSynchronize(stream);
    for (uint64_t at = 0, part; at < size && !r->status; at += part) {
        part = size - at < WIRE_PIECE ? size - at : WIRE_PIECE;
        out_data(cookie, at, room + at, part);
    }
}

/* A copy in a graph is made again and again, so that no end of it can be in a message. */
void do_box_node(struct request *r)
{
    struct box box;
    size_t count = 0;
    CUgraph graph = NULL;
    CUgraphExec instance = NULL;
    CUgraphNode node = NULL, *dependencies = NULL;
    uint64_t fresh = 0;
    if (r->head.op == OP_box_node) {
        fresh = take_u64(r);
        graph = take_handle(r);
        dependencies = (CUgraphNode *)take_handles(r, &count);
    } else {
        instance = r->head.op == OP_box_node_set ? take_handle(r) : NULL;
        node = take_handle(r);
    }
    CUcontext context = r->head.op == OP_box_node_change ? NULL : take_handle(r);
    take_box(r, &box);
    require(r, box.from.place != PLACE_MESSAGE && box.to.place != PLACE_MESSAGE);
    if (r->status)
        return;
    const CUDA_MEMCPY3D copy = described(&box, NULL);
    if (instance)
        r->status = (int)real_cuda.cuGraphExecMemcpyNodeSetParams(instance, node, &copy, context);
    else if (!graph)
        r->status = (int)real_cuda.cuGraphMemcpyNodeSetParams(node, &copy);
    else
        r->status = (int)real_cuda.cuGraphAddMemcpyNode(&node, graph, dependencies, count, &copy, context);
    if (graph && !r->status)
        handle_set(fresh, node);
}
