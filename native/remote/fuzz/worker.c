/* Fuzzes the worker's decoder: random frames, as from a hostile client, under the sanitizers.
 *
 *     milligpu-fuzz-worker SEED FIRST COUNT
 *
 * Each input is some frames for a worker whose client has proved itself. The line and the driver are replaced; all
 * else is the worker's own code. Inputs depend on the seed and their number only. A child process runs some thousand
 * of them, so that what they leave behind does not grow. */
#define _GNU_SOURCE
#include "driver.h"
#include "random.h"
#include <setjmp.h>
#include <sys/wait.h>

/* `end` ends an input here, and not the process. */
#define main worker_main
#include "../worker/main.c"
#undef main

enum { INPUT_MAX = 64 << 10, FRAMES = 12, WORDS = 24, BATCH = 4000, HANDLES = 4096, MEMORY_MAX = 4 << 20 };

static struct {
    _Alignas(8) char data[INPUT_MAX];
    size_t size, at;
} input;
static uint64_t input_number;
static jmp_buf ended;

/* ---- the line ---- */

struct line {
    int unused;
};

void end(const char *why)
{
    (void)why;
    longjmp(ended, 1);
}

int line_descriptor(const struct line *unused)
{
    (void)unused;
    return -1;
}

void line_set_timeout(int descriptor, int milliseconds)
{
    (void)descriptor;
    (void)milliseconds;
}

struct line *line_open(int descriptor, const struct line_security *security, int server)
{
    (void)descriptor;
    (void)security;
    (void)server;
    return NULL;
}

long line_receive(struct line *unused, void *to, size_t room)
{
    size_t left = input.size - input.at, part = left < room ? left : room;
    (void)unused;
    memcpy(to, input.data + input.at, part);
    input.at += part;
    return part ? (long)part : LINE_CLOSED;
}

static volatile unsigned char seen;

static void look_at(const void *data, size_t size)
{
    const unsigned char *bytes = data;
    unsigned char sum = 0;
    for (size_t i = 0; i < size; i++)
        sum ^= bytes[i];
    seen = sum;
}

void out_start(struct line *unused)
{
    (void)unused;
}

void out_reply(struct request *r)
{
    look_at(r->reply, r->used);
    r->lane->kept = 0;
}

void out_data(uint64_t cookie, uint64_t offset, const void *data, size_t size)
{
    (void)cookie;
    (void)offset;
    look_at(data, size);
}

void out_beat(void) {}

/* ---- the driver ---- */

static char handles[HANDLES * 16];
static size_t handle_count = 1;

void *driver_handle(void)
{
    return handles + 16 * (handle_count++ % HANDLES);
}

void driver_check(const void *handle, const char *who)
{
    bool is_plain = (uintptr_t)handle < HANDLE_STEP;
    if (is_plain || ((const char *)handle >= handles && (const char *)handle < handles + sizeof handles))
        return;
    fprintf(stderr, "%s was given %p, which the driver did not make\n", who, handle);
    abort();
}

CUresult driver_status(void)
{
    return random_below(8) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult host_alloc(void **to, size_t size, unsigned flags)
{
    (void)flags;
    *to = size <= MEMORY_MAX ? calloc(1, size ? size : 1) : NULL;
    return *to ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult from_device(void *to, CUdeviceptr from, size_t size)
{
    (void)from;
    if (size > MEMORY_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    memset(to, 7, size);
    return driver_status();
}

static CUresult from_device_later(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    driver_check(stream, __func__);
    return from_device(to, from, size);
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t size)
{
    (void)to;
    look_at(from, size);
    return driver_status();
}

static CUresult to_device_later(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    driver_check(stream, __func__);
    return to_device(to, from, size);
}

static CUresult pointer_attribute(void *to, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    void *handle = driver_handle();
    (void)attribute;
    (void)pointer;
    memcpy(to, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

static CUresult link_complete(CUlinkState state, void **image, size_t *size)
{
    static char made[256];
    driver_check(state, __func__);
    *image = made;
    *size = sizeof made;
    return driver_status();
}

/* All that the box has on this side is read, or written. */
static CUresult copy_box(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    const char *from = (const char *)copy->srcHost + copy->srcXInBytes;
    char *to = (char *)copy->dstHost + copy->dstXInBytes;
    driver_check(stream, __func__);
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY)
        driver_check(copy->srcArray, __func__);
    if (copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        driver_check(copy->dstArray, __func__);
    if (copy->WidthInBytes * copy->Height > MEMORY_MAX || copy->WidthInBytes * copy->Height * copy->Depth > MEMORY_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t z = 0; z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height; y++) {
            if (copy->srcMemoryType == CU_MEMORYTYPE_HOST)
                look_at(from + ((copy->srcZ + z) * copy->srcHeight + copy->srcY + y) * copy->srcPitch,
                        copy->WidthInBytes);
            if (copy->dstMemoryType == CU_MEMORYTYPE_HOST)
                memset(to + ((copy->dstZ + z) * copy->dstHeight + copy->dstY + y) * copy->dstPitch, 7,
                       copy->WidthInBytes);
        }
    return driver_status();
}

static CUresult add_copy(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         const CUDA_MEMCPY3D *copy, CUcontext context)
{
    driver_check(graph, __func__);
    driver_check(context, __func__);
    for (size_t i = 0; i < count; i++)
        driver_check(dependencies[i], __func__);
    *node = driver_handle();
    return copy_box(copy, NULL);
}

static CUresult graph_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    driver_check(graph, __func__);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = driver_handle();
    return driver_status();
}

static CUresult host_register(void *memory, size_t size, unsigned flags)
{
    (void)flags;
    if (size > MEMORY_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    look_at(memory, size);
    return driver_status();
}

void driver_start_by_hand(void)
{
    real_cuda.cuMemHostAlloc = host_alloc;
    real_cuda.cuMemcpyDtoH_v2 = from_device;
    real_cuda.cuMemcpyDtoHAsync_v2 = from_device_later;
    real_cuda.cuMemcpyHtoD_v2 = to_device;
    real_cuda.cuMemcpyHtoDAsync_v2 = to_device_later;
    real_cuda.cuMemcpy3DAsync_v2 = copy_box;
    real_cuda.cuGraphAddMemcpyNode = add_copy;
    real_cuda.cuGraphGetNodes = graph_nodes;
    real_cuda.cuPointerGetAttribute = pointer_attribute;
    real_cuda.cuLinkComplete = link_complete;
    real_cuda.cuMemHostRegister_v2 = host_register;
}

/* ---- inputs ---- */

static void add_frame(void)
{
    struct wire_head head = {.op = (uint16_t)random_below(OP_END + 2),
                             .flags = (uint16_t)random_below(2),
                             .lane = (uint32_t)(random_below(40) ? random_below(3) : random_u64())};
    size_t words = random_below(WORDS);
    if (input.size + sizeof head + 8 * words > INPUT_MAX)
        return;
    head.length = (uint32_t)(random_below(20) ? 8 * words : random_below(1 << 17));
    memcpy(input.data + input.size, &head, sizeof head);
    input.size += sizeof head;
    for (size_t i = 0; i < words; i++, input.size += 8) {
        /* Often the size of what is left: a block that is as long as it says gets further. */
        uint64_t value = random_below(4) ? random_value() : 8 * (words - 1 - i);
        memcpy(input.data + input.size, &value, sizeof value);
    }
}

static void make_input(void)
{
    input.size = input.at = 0;
    for (uint64_t frames = 1 + random_below(FRAMES); frames; frames--)
        add_frame();
    for (uint64_t changes = random_below(3) ? 0 : random_below(8); changes; changes--)
        input.data[random_below(input.size)] = (char)random_u64();
}

static void run_input(struct request *r)
{
    in.at = in.end = 0;
    if (!setjmp(ended))
        for (;;)
            serve_one(r);
    request_free_rooms(r);
}

static void run_batch(uint64_t seed, uint64_t first, uint64_t count)
{
    struct request r = {.room = 4096, .reply = malloc(4096)};
    lanes_seen = -(1 << 30); /* no helper threads: an input runs in one thread, and can be made again */
    drivers_begin();
    driver_start();
    for (input_number = first; input_number < first + count; input_number++) {
        random_seed(seed, input_number);
        make_input();
        run_input(&r);
    }
}

static void report(int signal_number)
{
    fprintf(stderr, "fuzz: input %llu ended with signal %d\n", (unsigned long long)input_number, signal_number);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    uint64_t seed = strtoull(arguments[1], NULL, 0), first = strtoull(arguments[2], NULL, 0);
    uint64_t last = first + strtoull(arguments[3], NULL, 0);
    for (uint64_t at = first; at < last; at += BATCH) {
        pid_t child = fork();
        if (!child) {
            signal(SIGABRT, report);
            run_batch(seed, at, last - at < BATCH ? last - at : BATCH);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status) {
            fprintf(stderr, "fuzz: failed within inputs %llu to %llu\n", (unsigned long long)at,
                    (unsigned long long)(at + BATCH));
            return 1;
        }
    }
    printf("%llu inputs\n", (unsigned long long)(last - first));
    return 0;
}
