/* milligpu-worker --fd N --session ID --parent PID [--cache DIR] [--plain]
 *
 * Started by the GPU server for one connection of a session, with the session's environment. The session's key is in
 * MILLIGPU_WORKER_KEY. */
#define _GNU_SOURCE
#include "../line.h"
#include "worker.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    LANES = 1024,
    IN_ROOM = 1 << 20,
    HANDSHAKE_MS = 10000,
    BEAT_MS = 1000, /* the client gives up after ten of them */
    HELPER_ROOM = 4096
};

static struct line *line;
static struct lane lanes[LANES];
static int lanes_seen;
static _Thread_local CUcontext thread_context;
static int working; /* operations that run now */

static const struct operation by_hand[] = {
    [OP_copy_out] = {do_copy_out, 1},
    [OP_copy_out_later] = {do_copy_out_later, 0},
    [OP_launch] = {do_launch, 0},
    [OP_launch_ex] = {do_launch, 0},
    [OP_module_load] = {do_load, 0},
    [OP_library_load] = {do_load, 0},
    [OP_synchronize] = {do_synchronize, 1},
    [OP_fence] = {do_fence, 0},
    [OP_kernel_node] = {do_kernel_node, 0},
    [OP_kernel_node_set] = {do_kernel_node, 0},
    [OP_kernel_node_change] = {do_kernel_node, 0},
    [OP_pointer_attribute] = {do_pointer_attribute, 0},
    [OP_pool_attribute] = {do_pool_attribute, 0},
    [OP_link_create] = {do_link_create, 0},
    [OP_link_add] = {do_link_add, 0},
    [OP_link_complete] = {do_link_complete, 0},
    [OP_link_destroy] = {do_link_destroy, 0},
    [OP_host_map] = {do_host_map, 0},
    [OP_host_in] = {do_host_in, 0},
    [OP_host_end] = {do_host_end, 0},
    [OP_box] = {do_box, 0},
    [OP_box_in] = {do_box_in, 0},
    [OP_box_out] = {do_box_out, 1},
    [OP_box_node] = {do_box_node, 0},
    [OP_box_node_set] = {do_box_node, 0},
    [OP_box_node_change] = {do_box_node, 0},
    [OP_occupancy] = {do_occupancy, 0},
    [OP_capture_info] = {do_capture_info, 0},
};

static const struct operation *operation_of(unsigned op)
{
    const struct operation *found = op < sizeof by_hand / sizeof *by_hand ? &by_hand[op]
                                    : op < OP_END                         ? &generated_operations[op]
                                                                          : NULL;
    return found && found->run ? found : NULL;
}

/* ---- what comes ---- */

static struct {
    char data[IN_ROOM];
    size_t at, end;
} in;

static void receive(char *to, size_t room, size_t *got)
{
    long size = line_receive(line, to, room);
    if (size <= 0)
        end(size == LINE_CLOSED ? "the client closed the connection" : "the connection failed");
    *got = (size_t)size;
}

/* From what has come, then straight from the network. */
void in_read(void *to, size_t size)
{
    char *end_of = to;
    size_t part = in.end - in.at < size ? in.end - in.at : size;
    memcpy(end_of, in.data + in.at, part);
    in.at += part;
    for (size_t got; part < size; part += got)
        receive(end_of + part, size - part, &got);
}

/* At least so many bytes, in one piece; valid until the next call. */
static const char *in_take(size_t size)
{
    if (in.at == in.end)
        in.at = in.end = 0;
    if (size > IN_ROOM - in.at) {
        memmove(in.data, in.data + in.at, in.end - in.at);
        in.end -= in.at;
        in.at = 0;
    }
    while (in.end - in.at < size) {
        size_t got;
        receive(in.data + in.end, IN_ROOM - in.end, &got);
        in.end += got;
    }
    const char *data = in.data + in.at;
    in.at += size;
    return data;
}

/* ---- running operations ---- */

static void enter(const struct lane *lane)
{
    if (thread_context != lane->context && !real_cuda.cuCtxSetCurrent(lane->context))
        thread_context = lane->context;
}

static bool changes_context(int op)
{
    return op == OP_cuCtxCreate_v2 || op == OP_cuCtxDestroy_v2 || op == OP_cuCtxSetCurrent
           || op == OP_cuDevicePrimaryCtxReset || op == OP_cuDevicePrimaryCtxReset_v2
           || op == OP_cuDevicePrimaryCtxRelease || op == OP_cuDevicePrimaryCtxRelease_v2;
}

static void finish(struct request *r)
{
    if (r->head.flags & WIRE_WANTS_REPLY) {
        copies_deliver();
        host_return();
        out_reply(r);
    } else if (!r->lane->kept)
        r->lane->kept = r->status;
    request_free_rooms(r);
}

static void run(struct request *r, void (*operation)(struct request *))
{
    __atomic_fetch_add(&working, 1, __ATOMIC_SEQ_CST);
    enter(r->lane);
    operation(r);
    if (changes_context(r->head.op)) {
        real_cuda.cuCtxGetCurrent(&r->lane->context);
        thread_context = r->lane->context;
    }
    finish(r);
    __atomic_fetch_sub(&working, 1, __ATOMIC_SEQ_CST);
}

/* A thread beside the executor, for a lane that waits. The client's thread waits too, so there is one job at a time. */
struct helper {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    void (*operation)(struct request *);
    struct request job;
    char data[HELPER_ROOM];
};

static void *helper_main(void *argument)
{
    struct helper *helper = argument;
    pthread_mutex_lock(&helper->lock);
    for (;;) {
        while (!helper->operation)
            pthread_cond_wait(&helper->wake, &helper->lock);
        void (*operation)(struct request *) = helper->operation;
        helper->operation = NULL;
        pthread_mutex_unlock(&helper->lock);
        run(&helper->job, operation);
        pthread_mutex_lock(&helper->lock);
    }
    return NULL;
}

static struct helper *helper_of(struct lane *lane)
{
    pthread_t thread;
    if (lane->helper)
        return lane->helper;
    struct helper *helper = calloc(1, sizeof *helper);
    if (!helper)
        return NULL;
    pthread_mutex_init(&helper->lock, NULL);
    pthread_cond_init(&helper->wake, NULL);
    if (pthread_create(&thread, NULL, helper_main, helper)) {
        free(helper);
        return NULL;
    }
    pthread_detach(thread);
    return lane->helper = helper;
}

static bool run_beside(struct request *r, const struct operation *operation)
{
    if (!operation->beside || lanes_seen < 2 || r->end > HELPER_ROOM || !(r->head.flags & WIRE_WANTS_REPLY))
        return false;
    struct helper *helper = helper_of(r->lane);
    if (!helper)
        return false;
    pthread_mutex_lock(&helper->lock);
    char *reply = helper->job.reply;
    size_t room = helper->job.room;
    helper->job = *r;
    helper->job.reply = reply;
    helper->job.room = room;
    memcpy(helper->data, r->data, r->end);
    helper->job.data = helper->data;
    helper->operation = operation->run;
    pthread_cond_signal(&helper->wake);
    pthread_mutex_unlock(&helper->lock);
    return true;
}

/* ---- serving ---- */

static void read_head(struct request *r)
{
    memcpy(&r->head, in_take(sizeof r->head), sizeof r->head);
    if (r->head.lane >= LANES || r->head.length > WIRE_FRAME_MAX)
        end("a frame that is not valid");
    r->lane = &lanes[r->head.lane];
    lanes_seen += !r->lane->used;
    r->lane->used = true;
    r->status = 0;
    r->used = r->at = 0;
}

static void serve_one(struct request *r)
{
    read_head(r);
    if (r->head.op == OP_copy_in) { /* the only one that begins before all of it has come */
        if (r->head.length < 3 * sizeof(uint64_t))
            end("a frame that is not valid");
        char fixed[3 * sizeof(uint64_t)];
        memcpy(fixed, in_take(sizeof fixed), sizeof fixed);
        r->data = fixed;
        r->end = sizeof fixed;
        run(r, do_copy_in);
        return;
    }
    char *large = r->head.length > IN_ROOM ? malloc(r->head.length) : NULL;
    if (r->head.length > IN_ROOM && !large)
        end("no memory for a message");
    if (large)
        in_read(large, r->head.length);
    r->data = large ? large : in_take(r->head.length);
    r->end = r->head.length;
    const struct operation *operation = operation_of(r->head.op);
    if (r->head.op == OP_lane_end)
        r->lane->kept = 0;
    else if (!operation) {
        r->status = CUDA_ERROR_NOT_SUPPORTED; /* of a newer client */
        finish(r);
    } else if (!run_beside(r, operation))
        run(r, operation->run);
    free(large);
}

/* Ends the process when the client is gone, whatever the executor does, and tells a waiting client that it works. */
static void *watcher(void *unused)
{
    int worked = 0;
    (void)unused;
    for (;;) {
        struct pollfd wait = {line_descriptor(line), POLLRDHUP, 0};
        if (poll(&wait, 1, BEAT_MS) > 0 && wait.revents & (POLLRDHUP | POLLHUP | POLLERR))
            end("the client closed the connection");
        int works = __atomic_load_n(&working, __ATOMIC_SEQ_CST);
        if (works && worked)
            out_beat();
        worked = works;
    }
    return NULL;
}

static _Noreturn void serve(int descriptor, const struct line_security *security, const unsigned char *key)
{
    struct request r = {.room = 4096, .reply = malloc(4096)};
    pthread_t thread;
    line_set_timeout(descriptor, HANDSHAKE_MS);
    line = line_open(descriptor, security, 1);
    if (!line || !r.reply)
        end("the client did not prove that the session is its own");
    out_start(line);
    read_head(&r);
    if (r.head.length > IN_ROOM)
        end("a frame that is not valid");
    r.data = in_take(r.head.length);
    r.end = r.head.length;
    welcome(&r, key);
    line_set_timeout(descriptor, 0);
    if (pthread_create(&thread, NULL, watcher, NULL))
        end("no thread");
    for (;;)
        serve_one(&r);
}

static bool read_key(unsigned char *key)
{
    const char *text = getenv("MILLIGPU_WORKER_KEY");
    bool is_valid = text && strlen(text) == 2 * KEY_SIZE;
    for (int i = 0; i < KEY_SIZE && is_valid; i++)
        is_valid = sscanf(text + 2 * i, "%2hhx", &key[i]) == 1;
    unsetenv("MILLIGPU_WORKER_KEY");
    return is_valid;
}

int main(int count, char **arguments)
{
    static unsigned char key[KEY_SIZE];
    struct line_security security = {NULL, key, NULL};
    const char *session = NULL;
    int descriptor = -1, parent = 0;
    bool is_plain = false;
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i], *value = i + 1 < count ? arguments[i + 1] : "";
        if (!strcmp(name, "--plain")) {
            is_plain = true;
            continue;
        }
        if (!strcmp(name, "--fd"))
            descriptor = atoi(value);
        else if (!strcmp(name, "--session"))
            session = value;
        else if (!strcmp(name, "--parent"))
            parent = atoi(value);
        else if (!strcmp(name, "--cache"))
            module_cache = value;
        i++;
    }
    if (descriptor < 0 || !session || !parent || !read_key(key)) {
        fprintf(stderr, "usage: milligpu-worker --fd N --session ID --parent PID [--cache DIR] [--plain]\n");
        return 2;
    }
    /* A server that dies takes its workers along. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        return 1;
    signal(SIGPIPE, SIG_IGN);
    security.session = is_plain ? NULL : session;
    serve(descriptor, &security, key);
}
