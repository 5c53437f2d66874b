/* Fuzzes the client's decoder: random answers, as from a hostile server, under the sanitizers.
 *
 *     milligpu-fuzz-client SEED FIRST COUNT
 *
 * Each input is one call of a CUDA program and what the server answers. The line is replaced; all else is the client's
 * own code. Inputs depend on the seed and on those before them in a child process of some thousand. */
#define _GNU_SOURCE
#include "client.h"
#include "random.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../client/link.c"

enum { BATCH = 4000, ANSWER = 8 << 10, ASKED = 64, BUFFER = 4096, MANY = 8 };

/* ---- the line: answers are made when the client waits for them ---- */

struct line {
    int unused;
};
static struct wire_head asked[ASKED];
static size_t asked_count;
static struct {
    _Alignas(8) char data[ANSWER];
    size_t size, at;
} answer;
static uint64_t input_number;
static uint64_t cookies;

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

int line_connect(const char *host_and_port, int timeout_ms)
{
    (void)host_and_port;
    (void)timeout_ms;
    return open("/dev/null", O_RDWR | O_CLOEXEC);
}

struct line *line_open(int descriptor, const struct line_security *security, int server)
{
    static struct line only;
    (void)security;
    (void)server;
    close(descriptor);
    return &only;
}

void line_close(struct line *unused)
{
    (void)unused;
}

/* A request begins wherever a message was put into the buffer; only its head is of interest. */
int line_send(struct line *unused, const struct iovec *parts, int count)
{
    size_t skip = 0;
    (void)unused;
    for (int i = 0; i < count; i++) {
        const char *data = parts[i].iov_base;
        size_t at = skip;
        for (; at + sizeof *asked <= parts[i].iov_len;) {
            struct wire_head head;
            memcpy(&head, data + at, sizeof head);
            if (head.flags & WIRE_WANTS_REPLY && asked_count < ASKED)
                asked[asked_count++] = head;
            at += sizeof head + head.length;
        }
        skip = at - parts[i].iov_len;
    }
    return 0;
}

static void add(const void *data, size_t size)
{
    if (answer.size + size > ANSWER)
        return;
    memcpy(answer.data + answer.size, data, size);
    answer.size += size;
}

static void add_words(size_t words)
{
    for (size_t i = 0; i < words; i++) {
        uint64_t value = random_below(4) ? random_value() : 8 * (words - 1 - i);
        add(&value, sizeof value);
    }
}

static void add_data(void)
{
    size_t words = random_below(20);
    uint64_t where[3] = {cookies + random_below(8), random_below(3) ? 0 : random_value(),
                         random_below(4) ? 8 * words : random_value()};
    struct wire_head head = {(uint32_t)(sizeof where + 8 * words), ANSWER_DATA, 0, 0, 0};
    add(&head, sizeof head);
    add(where, sizeof where);
    add_words(words);
}

static void add_reply(void)
{
    struct wire_head to = asked_count ? asked[--asked_count] : (struct wire_head){0};
    size_t words = random_below(40);
    uint32_t statuses[2] = {random_below(6) ? 0 : (uint32_t)random_value(), random_below(12) ? 0 : 1};
    struct wire_head head = {(uint32_t)(sizeof statuses + 8 * words), ANSWER_REPLY, 0, to.lane, to.serial};
    if (!random_below(60))
        head.length = (uint32_t)random_value();
    if (!random_below(60))
        head.serial ^= (uint32_t)random_value();
    add(&head, sizeof head);
    add(statuses, sizeof statuses);
    add_words(words);
}

static void make_answer(void)
{
    answer.size = answer.at = 0;
    for (uint64_t frames = random_below(4); frames; frames--)
        if (random_below(2))
            add_data();
    add_reply();
    if (!random_below(20))
        answer.data[random_below(answer.size)] = (char)random_u64();
}

long line_receive(struct line *unused, void *to, size_t room)
{
    (void)unused;
    if (answer.at == answer.size) {
        if (!random_below(200))
            return LINE_CLOSED;
        make_answer();
    }
    size_t left = answer.size - answer.at, part = left < room ? left : room;
    memcpy(to, answer.data + answer.at, part);
    answer.at += part;
    return (long)part;
}

/* ---- the program ---- */

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n";
static CUmodule module;
static CUfunction function;
static CUstream stream;
static CUevent event;
static CUcontext context;
static CUdeviceptr memory[MANY];
static char buffer[BUFFER];

static void welcome_again(void)
{
    /* A lost connection stays lost; here it is another one. */
    is_lost = false;
    in.at = in.end = 0;
    in.reading = false;
    out.used = 0;
    asked_count = 0;
    answer.size = answer.at = 0;
}

static void launch_something(void)
{
    /* The server says how many parameters there are and how large: not more than any kernel's can be. */
    static char largest[32764];
    void *parameters[1024];
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        parameters[i] = largest;
    cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void copy_something(CUdeviceptr at)
{
    CUDA_MEMCPY2D copy = {
        .WidthInBytes = random_below(80), .Height = random_below(40), .srcPitch = 64, .dstPitch = 100};
    bool is_in = random_below(2);
    copy.srcMemoryType = is_in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = is_in ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcHost = copy.dstHost = buffer;
    copy.srcDevice = copy.dstDevice = at;
    cuMemcpy2D_v2(&copy);
}

/* What a hostile server says of a capture is looked at. */
static void look_at_a_capture(void)
{
    CUstreamCaptureStatus status;
    CUgraph graph;
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t count = 0;
    cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (!cuStreamGetCaptureInfo_v3(stream, &status, NULL, &graph, &nodes, &edges, &count))
        for (size_t i = 0; i < count; i++)
            buffer[i % BUFFER] = (char)((uintptr_t)nodes[i] ^ edges[i].type);
    cuStreamEndCapture(stream, &graph);
}

static void call_something(void)
{
    CUgraphNode nodes[MANY];
    size_t size = random_below(BUFFER), other = 0;
    int value = 0;
    void *pointer = NULL;
    unsigned at = (unsigned)random_below(MANY);
    switch (random_below(31)) {
    case 0: cuModuleLoadData(&module, image); break;
    case 1: cuModuleGetFunction(&function, module, "f"); break;
    case 2: cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function); break;
    case 3:
    case 4:
    case 5: launch_something(); break;
    case 6: cuMemAlloc_v2(&memory[at], size + 1); break;
    case 7: cuMemFree_v2(memory[at]); break;
    case 8: cuMemcpyHtoD_v2(memory[at], buffer, size); break;
    case 9:
    case 10: cuMemcpyDtoH_v2(buffer, memory[at], size); break;
    case 11: cuMemcpyDtoHAsync_v2(buffer, memory[at], size, stream); break;
    case 12: cuStreamCreate(&stream, 0); break;
    case 13: cuStreamSynchronize(stream); break;
    case 14: cuCtxSynchronize(); break;
    case 15: cuEventCreate(&event, 0); break;
    case 16: cuEventRecord(event, stream); break;
    case 17: cuEventQuery(event); break;
    case 18: cuMemGetInfo_v2(&size, &other); break;
    case 19: cuDevicePrimaryCtxRetain(&context, 0); break;
    case 20: cuCtxSetCurrent(context); break;
    case 21: cuModuleGetGlobal_v2(&memory[at], &other, module, "g"); break;
    case 22: cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_CONTEXT, memory[at]); break;
    case 23: cuFuncGetParamInfo(function, 0, &size, &other); break;
    case 24: cuModuleUnload(module); break;
    case 25: cuDeviceGetName(buffer, (int)size, 0); break;
    case 26: cuMemHostAlloc(&pointer, 4096, 0); break;
    case 27: copy_something(memory[at]); break;
    case 28: look_at_a_capture(); break;
    case 29:
        size = random_below(MANY + 1);
        cuGraphGetNodes((CUgraph)event, nodes, &size);
        break;
    default: cuStreamGetFlags(stream, &at);
    }
}

static void give_facts(void)
{
    size_t size = sizeof(struct wire_welcome) + sizeof(struct wire_device);
    struct wire_welcome *made = calloc(1, size);
    made->version = WIRE_VERSION;
    made->driver = CUDA_VERSION;
    made->devices = 1;
    made->device_size = sizeof(struct wire_device);
    made->device[0].memory = 1 << 30;
    for (int i = 0; i < FACT_ATTRIBUTES; i++)
        made->device[0].attributes[i] = 1024;
    static struct line only;
    link_open(&only, false);
    lanes_begin();
    facts = made;
}

static void run_batch(uint64_t seed, uint64_t first, uint64_t count)
{
    FILE *quiet = freopen("/dev/null", "w", stdout);
    (void)quiet;
    random_seed(seed, first);
    give_facts();
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    for (input_number = first; input_number < first + count; input_number++) {
        if (is_lost)
            welcome_again();
        struct landing *probe = landing_begin(buffer, 8, false, NULL);
        cookies = probe ? landing_cookie(probe) : 0;
        if (probe)
            landing_end(probe);
        call_something();
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
