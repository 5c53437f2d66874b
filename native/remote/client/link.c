/* The connection: sends coalesced messages, and lets one of the waiting threads receive for all. */
#define _GNU_SOURCE
#include "link.h"
#include "../line.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    OUT_ROOM = 256 << 10,
    OUT_SMALL = 32 << 10, /* larger messages go from where they are */
    IN_ROOM = 64 << 10,
    LANES = 1024,
    LINGER_US = 50,     /* how long a message without an answer may wait for company */
    CONNECT_MS = 10000, /* to reach the server */
    START_MS = 60000,   /* for the worker to start and to open its GPUs */
    REPLY_MAX = 64 << 20,
    IDLE_NAPS = 20
};
/* Silence for so long means that the server is gone: while an operation takes long, the worker sends beats. */
enum { PATIENCE_MS = 10000 };

int (*link_before_waiting)(void);

static struct line *line;
static bool is_lost, is_strict;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    char data[OUT_ROOM];
    size_t used;
    int64_t flushed;
    bool asleep;
} out = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool reading;
    char data[IN_ROOM];
    size_t at, end;
} in = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static struct lane *lanes[LANES];
static uint32_t lane_count;
static _Thread_local struct lane *own_lane;
static pthread_key_t lane_key;
static uint64_t changes;
static struct {
    uint64_t sent[OP_END], waited[OP_END], round_trips, bytes_out, bytes_in;
} counts;

struct landing {
    struct landing *next;
    uint64_t cookie;
    char *to;
    size_t size, landed;
    bool later;
    char *shadow;
};
static struct landing *landings;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int lose(const char *why)
{
    if (!__atomic_exchange_n(&is_lost, true, __ATOMIC_SEQ_CST))
        fprintf(stderr, "milligpu: the GPU server is lost: %s\n", why);
    return link_status_lost;
}

bool link_is_up(void)
{
    return line != NULL;
}

bool link_is_strict(void)
{
    return is_strict;
}

uint64_t link_changes(void)
{
    return __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
}

/* ---- sending ---- */

static int flush_locked(void)
{
    struct iovec part = {out.data, out.used};
    if (!out.used)
        return 0;
    int bad = line_send(line, &part, 1);
    counts.bytes_out += out.used;
    out.used = 0;
    out.flushed = now_ns();
    return bad ? lose("it does not take what is sent") : 0;
}

static void sleep_until_woken(void)
{
    out.asleep = true;
    pthread_cond_wait(&out.wake, &out.lock);
    out.asleep = false;
}

/* What waits in the buffer goes after LINGER_US at the latest. */
static void *flusher(void *unused)
{
    const struct timespec nap = {0, LINGER_US * 1000};
    int idle = 0;
    (void)unused;
    pthread_mutex_lock(&out.lock);
    while (!is_lost) {
        idle = out.used ? 0 : idle + 1;
        flush_locked();
        if (idle > IDLE_NAPS) {
            sleep_until_woken();
            idle = 0;
        }
        pthread_mutex_unlock(&out.lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&out.lock);
    }
    pthread_mutex_unlock(&out.lock);
    return NULL;
}

static int send_small(const struct lane *lane, const void *payload, size_t size, bool at_once)
{
    int status = out.used + lane->used + padded(size) > OUT_ROOM ? flush_locked() : 0;
    char *end = out.data + out.used;
    memcpy(end, lane->data, lane->used);
    if (size) {
        memcpy(end + lane->used, payload, size);
        memset(end + lane->used + size, 0, padded(size) - size);
    }
    out.used += lane->used + padded(size);
    if (status)
        return status;
    if (at_once || out.used > OUT_SMALL || now_ns() - out.flushed > LINGER_US * 1000)
        return flush_locked();
    if (out.asleep)
        pthread_cond_signal(&out.wake);
    return 0;
}

static int send_large(const struct lane *lane, const void *payload, size_t size)
{
    static const char zeros[WIRE_ALIGN];
    struct iovec parts[] = {{lane->data, lane->used}, {(void *)payload, size}, {(void *)zeros, padded(size) - size}};
    int status = flush_locked();
    if (!status && line_send(line, parts, !size ? 1 : parts[2].iov_len ? 3 : 2))
        status = lose("it does not take what is sent");
    counts.bytes_out += lane->used + padded(size);
    out.flushed = now_ns();
    return status;
}

static bool changes_a_device(int op)
{
    return op != OP_copy_out && op != OP_synchronize;
}

static int emit(struct lane *lane, int flags, const void *payload, size_t size)
{
    struct wire_head *head = (struct wire_head *)lane->data;
    size_t length = lane->used - sizeof *head + padded(size);
    if (lane->failed || length > WIRE_FRAME_MAX) {
        lane->failed = false;
        return link_status_lost;
    }
    head->length = (uint32_t)length;
    head->flags = (uint16_t)flags;
    head->lane = lane->number;
    head->serial = ++lane->serial;
    pthread_mutex_lock(&out.lock);
    if (changes_a_device(head->op))
        __atomic_fetch_add(&changes, 1, __ATOMIC_RELEASE);
    lane->emitted = changes;
    counts.sent[head->op]++;
    int status = lane->used + padded(size) <= OUT_SMALL ? send_small(lane, payload, size, flags)
                                                        : send_large(lane, payload, size);
    pthread_mutex_unlock(&out.lock);
    return status;
}

/* ---- receiving ---- */

static int receive(void *to, size_t size)
{
    char *end = to;
    while (size) {
        if (in.at == in.end) {
            bool direct = size >= IN_ROOM / 2;
            long got = line_receive(line, direct ? end : in.data, direct ? size : IN_ROOM);
            if (got <= 0)
                return lose(got == LINE_TIMEOUT  ? "nothing came for too long"
                            : got == LINE_CLOSED ? "it closed the connection"
                                                 : "the connection failed");
            counts.bytes_in += (uint64_t)got;
            if (direct) {
                end += got;
                size -= (size_t)got;
                continue;
            }
            in.at = 0;
            in.end = (size_t)got;
        }
        size_t part = in.end - in.at < size ? in.end - in.at : size;
        memcpy(end, in.data + in.at, part);
        in.at += part;
        end += part;
        size -= part;
    }
    return 0;
}

struct landing *landing_begin(void *to, size_t size, bool later, char *shadow)
{
    static uint64_t cookies;
    struct landing *landing = calloc(1, sizeof *landing);
    if (!landing)
        return NULL;
    *landing = (struct landing){.to = to, .size = size, .later = later, .shadow = shadow};
    pthread_mutex_lock(&in.lock);
    landing->cookie = ++cookies;
    landing->next = landings;
    landings = landing;
    pthread_mutex_unlock(&in.lock);
    return landing;
}

uint64_t landing_cookie(const struct landing *landing)
{
    return landing->cookie;
}

void landing_end(struct landing *landing)
{
    pthread_mutex_lock(&in.lock);
    struct landing **at = &landings;
    while (*at && *at != landing)
        at = &(*at)->next;
    if (*at)
        *at = landing->next;
    pthread_mutex_unlock(&in.lock);
    free(landing);
}

/* Data go only where a copy of this process waits for them, and not beyond its end. */
static int land(size_t length)
{
    struct {
        uint64_t cookie, offset, size;
    } where;
    char padding[WIRE_ALIGN];
    if (length < sizeof where || receive(&where, sizeof where))
        return lose("it sent a frame that is too short");
    pthread_mutex_lock(&in.lock);
    struct landing *landing = landings;
    while (landing && landing->cookie != where.cookie)
        landing = landing->next;
    pthread_mutex_unlock(&in.lock);
    if (!landing || where.size > landing->size || where.offset > landing->size - where.size
        || padded(where.size) + sizeof where != length)
        return lose("it sent data that nobody asked for");
    char *to = landing->to + where.offset;
    if (receive(to, where.size) || receive(padding, padded(where.size) - where.size))
        return link_status_lost;
    if (landing->shadow)
        memcpy(landing->shadow + where.offset, to, where.size);
    landing->landed += where.size;
    if (landing->later && landing->landed == landing->size)
        landing_end(landing);
    return 0;
}

static int receive_reply(const struct wire_head *head)
{
    struct lane *lane = head->lane < LANES ? lanes[head->lane] : NULL;
    if (!lane || lane->replied || head->serial != lane->serial || head->length < 8 || head->length > REPLY_MAX)
        return lose("it answered what nobody asked");
    if (head->length > lane->reply_room) {
        char *larger = realloc(lane->reply, head->length);
        if (!larger)
            return lose("no memory for its answer");
        lane->reply = larger;
        lane->reply_room = head->length;
    }
    if (receive(lane->reply, head->length))
        return link_status_lost;
    lane->reply_used = head->length;
    pthread_mutex_lock(&in.lock);
    lane->replied = true;
    pthread_mutex_unlock(&in.lock);
    return 0;
}

static int receive_frame(void)
{
    struct wire_head head;
    if (receive(&head, sizeof head))
        return link_status_lost;
    switch (head.op) {
    case ANSWER_BEAT: return head.length ? lose("it sent a beat with contents") : 0;
    case ANSWER_DATA: return land(head.length);
    case ANSWER_REPLY: return receive_reply(&head);
    default: return lose("it sent a frame of an unknown kind");
    }
}

static int await(struct lane *lane)
{
    pthread_mutex_lock(&in.lock);
    counts.round_trips++;
    counts.waited[((struct wire_head *)lane->data)->op]++;
    while (!lane->replied && !is_lost) {
        if (in.reading) {
            pthread_cond_wait(&in.changed, &in.lock);
            continue;
        }
        in.reading = true;
        while (!lane->replied && !is_lost) {
            pthread_mutex_unlock(&in.lock);
            int bad = receive_frame();
            pthread_mutex_lock(&in.lock);
            if (bad)
                break;
            pthread_cond_broadcast(&in.changed);
        }
        in.reading = false;
        pthread_cond_broadcast(&in.changed);
    }
    bool good = lane->replied;
    lane->replied = false;
    pthread_mutex_unlock(&in.lock);
    if (!good)
        return link_status_lost;
    uint32_t statuses[2];
    memcpy(statuses, lane->reply, sizeof statuses);
    lane->reply_at = sizeof statuses;
    return (int)(statuses[1] ? statuses[1] : statuses[0]); /* first the error of an earlier call without an answer */
}

/* ---- messages ---- */

static void lane_end(void *ended)
{
    struct lane *lane = ended;
    const struct wire_head head = {.op = OP_lane_end};
    memcpy(lane->data, &head, sizeof head);
    lane->used = sizeof head;
    if (line && !is_lost)
        emit(lane, 0, NULL, 0); /* its number is not used again, so its memory stays, too */
}

static struct lane *lane_new(void)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return NULL;
    lane->room = lane->reply_room = 4096;
    lane->data = malloc(lane->room);
    lane->reply = malloc(lane->reply_room);
    lane->number = __atomic_fetch_add(&lane_count, 1, __ATOMIC_SEQ_CST);
    if (!lane->data || !lane->reply || lane->number >= LANES)
        return NULL;
    lanes[lane->number] = lane;
    pthread_setspecific(lane_key, lane);
    return lane;
}

struct lane *link_lane(void)
{
    if (!own_lane)
        own_lane = lane_new();
    return own_lane;
}

static void message_head(struct lane *lane, int op)
{
    const struct wire_head head = {.op = (uint16_t)op};
    memcpy(lane->data, &head, sizeof head);
    lane->used = sizeof head;
    lane->failed = false;
}

static bool waits_for_the_device(int op)
{
    return op == OP_synchronize || op == OP_copy_out || op == OP_cuStreamSynchronize || op == OP_cuEventSynchronize
           || op == OP_cuStreamQuery || op == OP_cuEventQuery || op == OP_cuCtxSynchronize_v2;
}

static int tell_context(struct message *m)
{
    struct lane *lane = m->lane;
    void *current = lane->depth ? lane->contexts[lane->depth - 1] : NULL;
    if (current == lane->told)
        return 0;
    message_head(lane, OP_cuCtxSetCurrent);
    put_u64(m, handle_number(current));
    int status = message_send(m);
    if (!status)
        lane->told = current;
    return status;
}

int message_begin(struct message *m, int op)
{
    if (!line)
        return link_status_not_started;
    if (is_lost)
        return link_status_lost;
    int status = link_before_waiting && waits_for_the_device(op) ? link_before_waiting() : 0;
    if (status)
        return status;
    m->lane = link_lane();
    if (!m->lane)
        return link_status_lost;
    if (op != OP_hello && (status = tell_context(m)))
        return status;
    message_head(m->lane, op);
    return 0;
}

int message_send_with(struct message *m, const void *payload, size_t size)
{
    return is_strict ? message_call_with(m, payload, size) : emit(m->lane, 0, payload, size);
}

int message_send(struct message *m)
{
    return message_send_with(m, NULL, 0);
}

int message_call_with(struct message *m, const void *payload, size_t size)
{
    m->lane->reply_at = m->lane->reply_used = 0;
    int status = emit(m->lane, WIRE_WANTS_REPLY, payload, size);
    return status ? status : await(m->lane);
}

int message_call(struct message *m)
{
    return message_call_with(m, NULL, 0);
}

void put(struct message *m, const void *from, size_t size)
{
    struct lane *lane = m->lane;
    if (padded(size) > lane->room - lane->used) {
        size_t room = (lane->used + padded(size)) * 2;
        char *larger = realloc(lane->data, room);
        if (!larger) {
            lane->failed = true;
            return;
        }
        lane->data = larger;
        lane->room = room;
    }
    memcpy(lane->data + lane->used, from, size);
    memset(lane->data + lane->used + size, 0, padded(size) - size);
    lane->used += padded(size);
}

void put_u64(struct message *m, uint64_t value)
{
    put(m, &value, sizeof value);
}

void put_block(struct message *m, const void *from, size_t size)
{
    put_u64(m, from ? size : UINT64_MAX);
    if (from)
        put(m, from, size);
}

void put_string(struct message *m, const char *text)
{
    put_block(m, text, text ? strlen(text) + 1 : 0);
}

void put_handles(struct message *m, void *const *handles, size_t count)
{
    put_u64(m, handles ? count : 0);
    for (size_t i = 0; handles && i < count; i++)
        put_u64(m, handle_number(handles[i]));
}

uint64_t handle_new(void)
{
    static uint64_t next;
    return HANDLE_CLIENT + HANDLE_STEP * __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
}

void *put_new_handle(struct message *m)
{
    uint64_t number = handle_new();
    put_u64(m, number);
    return (void *)(uintptr_t)number;
}

bool get(struct message *m, void *to, size_t size)
{
    struct lane *lane = m->lane;
    if (padded(size) > lane->reply_used - lane->reply_at)
        return false;
    if (to)
        memcpy(to, lane->reply + lane->reply_at, size);
    lane->reply_at += padded(size);
    return true;
}

uint64_t get_u64(struct message *m)
{
    uint64_t value = 0;
    get(m, &value, sizeof value);
    return value;
}

void get_handle(struct message *m, void **to)
{
    uint64_t number;
    if (get(m, &number, sizeof number) && to)
        *to = (void *)(uintptr_t)number;
}

const void *get_inside(struct message *m, size_t *size)
{
    struct lane *lane = m->lane;
    uint64_t length = get_u64(m);
    *size = 0;
    if (length > lane->reply_used - lane->reply_at)
        return NULL;
    const void *inside = lane->reply + lane->reply_at;
    *size = length;
    lane->reply_at += padded(length);
    return inside;
}

void get_block(struct message *m, void *to, size_t room)
{
    size_t size;
    const void *from = get_inside(m, &size);
    if (to && from)
        memcpy(to, from, size < room ? size : room);
}

/* ---- the beginning and the end ---- */

/* For measurements and tests: how often the program waited for the server, and for what. */
static void write_counts(void)
{
    static const char *const names[OP_END] = {OPERATION_NAMES};
    const char *path = getenv("MILLIGPU_REMOTE_COUNTS"), *comma = "";
    FILE *file = path && line ? fopen(path, "w") : NULL; /* not in a child of fork */
    if (!file)
        return;
    fprintf(file, "{\"round_trips\": %llu, \"bytes_out\": %llu, \"bytes_in\": %llu, \"operations\": {",
            (unsigned long long)counts.round_trips, (unsigned long long)counts.bytes_out,
            (unsigned long long)counts.bytes_in);
    for (int op = 0; op < OP_END; op++)
        if (counts.sent[op]) {
            fprintf(file, "%s\"%s\": [%llu, %llu]", comma, names[op], (unsigned long long)counts.sent[op],
                    (unsigned long long)counts.waited[op]);
            comma = ", ";
        }
    fprintf(file, "}}\n");
    fclose(file);
}

/* A child of fork has no CUDA, as with the vendor's driver; the connection stays the parent's. */
static void in_child(void)
{
    line = NULL;
    own_lane = NULL;
    is_lost = true;
}

static bool read_key(const char *text, unsigned char *key)
{
    if (!text || strlen(text) != 2 * KEY_SIZE)
        return false;
    for (int i = 0; i < KEY_SIZE; i++) {
        unsigned byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            return false;
        key[i] = (unsigned char)byte;
    }
    return true;
}

static struct line *connect_to_worker(const char *server, const char *session, const unsigned char *key)
{
    const char *plain = getenv("MILLIGPU_REMOTE_PLAIN");
    bool is_plain = plain && !strcmp(plain, "1");
    struct wire_preamble preamble;
    const struct line_security security = {is_plain ? NULL : session, key};
    memset(&preamble, 0, sizeof preamble);
    memcpy(preamble.magic, PREAMBLE_MAGIC, sizeof preamble.magic);
    strcpy(preamble.session, session);
    int descriptor = line_connect(server, CONNECT_MS);
    if (descriptor < 0)
        return NULL;
    line_set_timeout(descriptor, START_MS);
    /* The preamble goes in the clear, so that the server can give the connection to the session's worker. */
    if (send(descriptor, &preamble, sizeof preamble, MSG_NOSIGNAL) != sizeof preamble) {
        close(descriptor);
        return NULL;
    }
    return line_open(descriptor, &security, 0);
}

static int say_hello(enum wire_api api, unsigned release, const unsigned char *key, struct wire_welcome **welcome)
{
    struct message m;
    struct wire_hello hello = {WIRE_MAGIC, WIRE_VERSION, WIRE_VERSION_MIN, api, release, 0, {0}};
    memcpy(hello.key, key, KEY_SIZE);
    int status = message_begin(&m, OP_hello);
    if (status)
        return status;
    put(&m, &hello, sizeof hello);
    if ((status = message_call(&m)))
        return status;
    size_t size = m.lane->reply_used - m.lane->reply_at;
    struct wire_welcome *facts = malloc(size < sizeof *facts ? sizeof *facts : size);
    if (!facts || size < sizeof *facts)
        return link_status_lost;
    memcpy(facts, m.lane->reply + m.lane->reply_at, size);
    if (facts->devices > FACT_DEVICES || facts->device_size != sizeof(struct wire_device)
        || size < sizeof *facts + facts->devices * sizeof(struct wire_device))
        return lose("its description of the GPUs is not valid");
    *welcome = facts;
    return 0;
}

static int start(enum wire_api api, unsigned release, struct wire_welcome **welcome)
{
    const char *server = getenv("MILLIGPU_REMOTE"), *session = getenv("MILLIGPU_REMOTE_SESSION");
    const char *strict = getenv("MILLIGPU_REMOTE_STRICT");
    static char session_copy[SESSION_SIZE];
    static unsigned char key[KEY_SIZE];
    pthread_t thread;
    if (!server || !session || strlen(session) >= sizeof session_copy
        || !read_key(getenv("MILLIGPU_REMOTE_KEY"), key)) {
        fprintf(stderr, "milligpu: no GPU server is set; start the program with: milligpu run --remote\n");
        return link_status_not_started;
    }
    strcpy(session_copy, session);
    is_strict = strict && !strcmp(strict, "1");
    line = connect_to_worker(server, session_copy, key);
    if (!line) {
        fprintf(stderr, "milligpu: cannot open a session at the GPU server %s\n", server);
        return link_status_not_started;
    }
    pthread_key_create(&lane_key, lane_end);
    pthread_atfork(NULL, NULL, in_child);
    int status = say_hello(api, release, key, welcome);
    if (status) {
        fprintf(stderr, "milligpu: the GPU server %s refused this program: error %d\n", server, status);
        is_lost = true;
        return link_status_not_started;
    }
    line_set_timeout(line_descriptor(line), PATIENCE_MS);
    if (!pthread_create(&thread, NULL, flusher, NULL))
        pthread_detach(thread);
    atexit(write_counts);
    return 0;
}

int link_start(enum wire_api api, unsigned release, struct wire_welcome **welcome)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    int status = is_lost ? link_status_lost : line ? 0 : start(api, release, welcome);
    pthread_mutex_unlock(&once);
    return status;
}
