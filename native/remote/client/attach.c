#define _GNU_SOURCE
#include "attach.h"
#include "line.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECT_MS = 10000,
    OPEN_MS = 60000, /* the share of a pod that ended a moment ago may not be free yet */
    FILE_MAX = 64 << 10,
    ANSWER_MAX = 64 << 10,
    REQUEST_MAX = FILE_MAX + 1024
};

static int fail(const char *server, const char *why)
{
    fprintf(stderr, "milligpu: no GPU from %s: %s\n", server, why);
    return -1;
}

static char *read_text(const char *folder, const char *name)
{
    char path[4096], *text = NULL;
    FILE *file = NULL;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path)
        file = fopen(path, "re");
    if (file && (text = calloc(1, FILE_MAX)) && !fread(text, 1, FILE_MAX - 1, file)) {
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

/* Copies the text of a field of the answer, which is one JSON object without nested ones; cut if it is too long. */
static int field(const char *answer, const char *name, char *to, size_t room)
{
    char start[64];
    snprintf(start, sizeof start, "\"%s\":\"", name);
    const char *from = strstr(answer, start);
    if (!from)
        return -1;
    from += strlen(start);
    size_t used = 0;
    for (; *from && *from != '"' && used + 1 < room; from++) {
        if (*from == '\\' && from[1])
            from++;
        to[used++] = *from;
    }
    to[used] = 0;
    return 0;
}

/* A token has three parts in base64url; anything else would end the text that it is put into. */
static int is_plain(const char *text)
{
    return text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=")] == 0;
}

static struct line *connect_to(const char *server, const char *authority)
{
    const struct line_security security = {NULL, NULL, authority};
    int descriptor = line_connect(server, CONNECT_MS);
    if (descriptor < 0)
        return NULL;
    line_set_timeout(descriptor, OPEN_MS);
    if (send(descriptor, CONTROL_MAGIC, strlen(CONTROL_MAGIC), MSG_NOSIGNAL) != (ssize_t)strlen(CONTROL_MAGIC)) {
        close(descriptor);
        return NULL;
    }
    return line_open(descriptor, &security, 0);
}

static int ask(struct line *line, const char *token, char *answer)
{
    static char request[REQUEST_MAX];
    const char *container = getenv("MILLIGPU_REMOTE_CONTAINER");
    if (!container || !is_plain(container) || !is_plain(token))
        return -1;
    int length = snprintf(request, sizeof request,
                          "{\"kind\":\"attach\",\"v\":1,\"token\":\"%s\",\"container\":\"%s\"}\n", token, container);
    struct iovec part = {request, (size_t)length};
    if (length < 0 || length >= (int)sizeof request || line_send(line, &part, 1))
        return -1;
    size_t used = 0;
    do {
        long got = line_receive(line, answer + used, ANSWER_MAX - 1 - used);
        if (got <= 0)
            return -1;
        used += (size_t)got;
    } while (!memchr(answer, '\n', used) && used < ANSWER_MAX - 1);
    answer[used] = 0;
    return 0;
}

static int open_session(struct attached_session *attached, const char *authority, const char *token)
{
    static char answer[ANSWER_MAX];
    char why[512];
    struct line *line = connect_to(attached->server, authority);
    if (!line)
        return fail(attached->server, "it cannot be reached, or is not the server that the grant names");
    int bad = ask(line, token, answer);
    line_close(line);
    if (bad)
        return fail(attached->server, "it does not answer");
    if (!field(answer, "message", why, sizeof why))
        return fail(attached->server, why);
    if (field(answer, "session", attached->session, sizeof attached->session)
        || field(answer, "key", attached->key, sizeof attached->key))
        return fail(attached->server, "its answer cannot be read");
    return 0;
}

int attach_pod(const char *folder, struct attached_session *attached)
{
    char *server = read_text(folder, "server"), *token = read_text(folder, "token");
    char *authority = server ? strchr(server, '\n') : NULL;
    int bad = -1;
    if (!authority || !token || authority - server >= ATTACH_ADDRESS)
        fail(folder, "the pod has no grant of a GPU server yet, or no token");
    else {
        *authority = 0;
        strcpy(attached->server, server);
        bad = open_session(attached, authority + 1, token);
    }
    free(server);
    free(token);
    return bad;
}
