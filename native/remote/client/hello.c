/* The beginning: reaches the server, opens the session's line, and learns what the worker says of itself. */
#define _GNU_SOURCE
#include "attach.h"
#include "link_parts.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECT_MS = 10000, /* to reach the server */
    START_MS = 60000    /* for the worker to start and to open its GPUs */
};
/* Silence for so long means that the server is gone: while an operation takes long, the worker sends beats. */
enum { PATIENCE_MS = 10000 };

/* A child of fork has no CUDA, as with the vendor's driver; the connection stays the parent's. */
static void in_child(void)
{
    link_forget();
    lanes_forget();
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
    const struct line_security security = {is_plain ? NULL : session, key, NULL};
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
    uint64_t each = facts->device_size; /* a newer worker may say more of each device */
    if (facts->devices > FACT_DEVICES || each < sizeof(struct wire_device)
        || each * facts->devices > size - sizeof *facts)
        return link_lose("its description of the GPUs is not valid");
    for (uint32_t i = 0; i < facts->devices; i++)
        memmove(&facts->device[i], (char *)facts->device + i * each, sizeof(struct wire_device));
    *welcome = facts;
    return 0;
}

static int start(enum wire_api api, unsigned release, struct wire_welcome **welcome)
{
    const char *server = getenv("MILLIGPU_REMOTE"), *session = getenv("MILLIGPU_REMOTE_SESSION");
    const char *key_text = getenv("MILLIGPU_REMOTE_KEY"), *folder = getenv("MILLIGPU_REMOTE_ATTACH");
    const char *strict = getenv("MILLIGPU_REMOTE_STRICT");
    static struct attached_session attached;
    static char session_copy[SESSION_SIZE];
    static unsigned char key[KEY_SIZE];
    if (!server && folder) {
        if (attach_pod(folder, &attached))
            return link_status_not_started;
        server = attached.server;
        session = attached.session;
        key_text = attached.key;
    }
    if (!server || !session || strlen(session) >= sizeof session_copy || !read_key(key_text, key)) {
        fprintf(stderr, "milligpu: no GPU server is set; start the program with: milligpu run --remote\n");
        return link_status_not_started;
    }
    strcpy(session_copy, session);
    struct line *line = connect_to_worker(server, session_copy, key);
    if (!line) {
        fprintf(stderr, "milligpu: cannot open a session at the GPU server %s\n", server);
        return link_status_not_started;
    }
    link_open(line, strict && !strcmp(strict, "1"));
    lanes_begin();
    pthread_atfork(NULL, NULL, in_child);
    int status = say_hello(api, release, key, welcome);
    if (status) {
        fprintf(stderr, "milligpu: the GPU server %s refused this program: error %d\n", server, status);
        link_forget();
        return link_status_not_started;
    }
    link_run(PATIENCE_MS);
    counts_write_at_exit();
    return 0;
}

int link_start(enum wire_api api, unsigned release, struct wire_welcome **welcome)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    int status = link_is_lost() ? link_status_lost : link_is_up() ? 0 : start(api, release, welcome);
    pthread_mutex_unlock(&once);
    return status;
}
