/* A stream of bytes to the other side: TCP, with TLS 1.3 unless both sides were told to do without.
 *
 * TLS uses the session's key, which both sides got over the server's own TLS connection, as a pre-shared key: it proves
 * both sides to each other without certificates, and the worker never sees the server's private key. */
#pragma once
#include <stddef.h>
#include <sys/uio.h>

struct line;

struct line_security {
    const char *session;      /* the identity of the key; NULL: no TLS, unless there is an authority */
    const unsigned char *key; /* KEY_SIZE bytes */
    const char *authority;    /* instead of a key: the CA, in PEM, that signed the server's certificate */
};

enum { LINE_CLOSED = 0, LINE_ERROR = -1, LINE_TIMEOUT = -2 };

int line_connect(const char *host_and_port, int timeout_ms); /* a descriptor, or -1 */
struct line *line_open(int descriptor, const struct line_security *security, int server);
int line_send(struct line *line, const struct iovec *parts, int count); /* all of it; 0 or -1 */
long line_receive(struct line *line, void *to, size_t room);            /* at least a byte, or one of the above */
void line_set_timeout(int descriptor, int milliseconds);
int line_descriptor(const struct line *line);
void line_close(struct line *line);
