#define _GNU_SOURCE
#include "line.h"
#include "wire.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* TLS reads and writes a pair of ring buffers, and the socket those, in large pieces: a system call for each record of
 * 16 KiB would cost more than the cipher. The lock is held while the processor works, never while the network does. */
enum { RING = 512 << 10, WRITE_MAX = 256 << 10, PARTS_MAX = 8, RECORD = 16 << 10 };

struct line {
    int descriptor;
    SSL *tls;
    BIO *ring;
    pthread_mutex_t lock;
    struct line_security security;
};

/* Both suites of TLS 1.3 with SHA-256 that every OpenSSL has. */
static const char *const SUITES = "TLS_AES_128_GCM_SHA256";

int line_descriptor(const struct line *line)
{
    return line->descriptor;
}

void line_set_timeout(int descriptor, int milliseconds)
{
    struct timeval limit = {milliseconds / 1000, milliseconds % 1000 * 1000};
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static int connect_within(int descriptor, const struct addrinfo *address, int timeout_ms)
{
    int error = 0;
    socklen_t size = sizeof error;
    struct pollfd wait = {descriptor, POLLOUT, 0};
    fcntl(descriptor, F_SETFL, O_NONBLOCK);
    if (connect(descriptor, address->ai_addr, address->ai_addrlen) && errno != EINPROGRESS)
        return -1;
    if (poll(&wait, 1, timeout_ms) != 1 || getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) || error)
        return -1;
    return fcntl(descriptor, F_SETFL, 0);
}

/* HOST:PORT or [IPV6]:PORT. */
int line_connect(const char *host_and_port, int timeout_ms)
{
    char text[300];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    const char *colon = strrchr(host_and_port, ':');
    size_t length = colon ? (size_t)(colon - host_and_port) : 0;
    if (!length || length >= sizeof text)
        return -1;
    int bracketed = host_and_port[0] == '[' && host_and_port[length - 1] == ']';
    memcpy(text, host_and_port + bracketed, length - 2 * (size_t)bracketed);
    text[length - 2 * (size_t)bracketed] = 0;
    if (getaddrinfo(text, colon + 1, &hints, &found))
        return -1;
    int descriptor = -1;
    for (struct addrinfo *each = found; each && descriptor < 0; each = each->ai_next) {
        descriptor = socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (descriptor >= 0 && connect_within(descriptor, each, timeout_ms)) {
            close(descriptor);
            descriptor = -1;
        }
    }
    freeaddrinfo(found);
    return descriptor;
}

static int send_all(int descriptor, const char *from, size_t size)
{
    while (size) {
        ssize_t sent = send(descriptor, from, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        from += sent;
        size -= (size_t)sent;
    }
    return 0;
}

/* Send what TLS has written into the ring. */
static int drain(struct line *line)
{
    for (;;) {
        char *data;
        pthread_mutex_lock(&line->lock);
        int ready = (int)BIO_nread0(line->ring, &data);
        pthread_mutex_unlock(&line->lock);
        if (ready <= 0)
            return 0;
        if (send_all(line->descriptor, data, (size_t)ready))
            return -1;
        pthread_mutex_lock(&line->lock);
        BIO_nread(line->ring, &data, ready);
        pthread_mutex_unlock(&line->lock);
    }
}

/* Receive what fits into the ring. */
static long fill(struct line *line)
{
    char *room;
    pthread_mutex_lock(&line->lock);
    int size = (int)BIO_nwrite0(line->ring, &room);
    pthread_mutex_unlock(&line->lock);
    if (size <= 0)
        return LINE_ERROR;
    ssize_t got = recv(line->descriptor, room, (size_t)size, 0);
    if (got > 0) {
        pthread_mutex_lock(&line->lock);
        BIO_nwrite(line->ring, &room, (int)got);
        pthread_mutex_unlock(&line->lock);
    }
    return got;
}

static unsigned client_key(SSL *tls, const char *hint, char *identity, unsigned room, unsigned char *key, unsigned most)
{
    const struct line_security *security = SSL_get_app_data(tls);
    (void)hint;
    if (strlen(security->session) >= room || most < KEY_SIZE)
        return 0;
    strcpy(identity, security->session);
    memcpy(key, security->key, KEY_SIZE);
    return KEY_SIZE;
}

static unsigned server_key(SSL *tls, const char *identity, unsigned char *key, unsigned most)
{
    const struct line_security *security = SSL_get_app_data(tls);
    if (!identity || strcmp(identity, security->session) || most < KEY_SIZE)
        return 0;
    memcpy(key, security->key, KEY_SIZE);
    return KEY_SIZE;
}

/* Trusts certificates of this CA, and of no other. */
static int trust(SSL_CTX *context, const char *authority)
{
    BIO *text = BIO_new_mem_buf(authority, -1);
    X509 *certificate = text ? PEM_read_bio_X509(text, NULL, NULL, NULL) : NULL;
    int good = certificate && X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate) == 1;
    X509_free(certificate);
    BIO_free(text);
    return good;
}

static SSL *new_tls(struct line *line, int server)
{
    /* The image's openssl.cnf must not change what we use, and the program may end while our threads run. */
    OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL);
    SSL_CTX *context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (!context)
        return NULL;
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context, SUITES);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (server)
        SSL_CTX_set_psk_server_callback(context, server_key);
    else if (line->security.authority) {
        if (!trust(context, line->security.authority)) {
            SSL_CTX_free(context);
            return NULL;
        }
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    } else {
        SSL_CTX_set_psk_client_callback(context, client_key);
        /* Without the key there is no connection: no certificate is ever accepted in its place. */
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    }
    SSL *tls = SSL_new(context);
    SSL_CTX_free(context);
    if (tls)
        SSL_set_app_data(tls, &line->security);
    return tls;
}

static int shake_hands(struct line *line, int server)
{
    BIO *inner;
    line->tls = new_tls(line, server);
    if (!line->tls || BIO_new_bio_pair(&inner, RING, &line->ring, RING) != 1)
        return -1;
    SSL_set_bio(line->tls, inner, inner);
    if (server)
        SSL_set_accept_state(line->tls);
    else
        SSL_set_connect_state(line->tls);
    for (;;) {
        int done = SSL_do_handshake(line->tls), why = SSL_get_error(line->tls, done);
        if (drain(line))
            return -1;
        if (done == 1 && line->security.authority)
            return SSL_get_verify_result(line->tls) == X509_V_OK && SSL_get0_peer_certificate(line->tls) ? 0 : -1;
        if (done == 1)
            return SSL_session_reused(line->tls) ? 0 : -1; /* by the key, and by nothing else */
        if (why != SSL_ERROR_WANT_READ || fill(line) <= 0)
            return -1;
    }
}

struct line *line_open(int descriptor, const struct line_security *security, int server)
{
    struct line *line = calloc(1, sizeof *line);
    int one = 1;
    if (!line)
        return NULL;
    line->descriptor = descriptor;
    line->security = *security;
    pthread_mutex_init(&line->lock, NULL);
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if ((security->session || security->authority) && shake_hands(line, server)) {
        line_close(line);
        return NULL;
    }
    return line;
}

void line_close(struct line *line)
{
    if (line->tls)
        SSL_free(line->tls);
    if (line->ring)
        BIO_free(line->ring);
    close(line->descriptor);
    free(line);
}

static int send_encrypted(struct line *line, const char *from, size_t size)
{
    while (size) {
        pthread_mutex_lock(&line->lock);
        int sent = SSL_write(line->tls, from, size > WRITE_MAX ? WRITE_MAX : (int)size);
        pthread_mutex_unlock(&line->lock);
        if (sent <= 0 || drain(line))
            return -1;
        from += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int send_parts_encrypted(struct line *line, const struct iovec *parts, int count)
{
    char together[RECORD];
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    if (count > 1 && total <= sizeof together) { /* small parts become one record */
        char *end = together;
        for (int i = 0; i < count; i++)
            end = mempcpy(end, parts[i].iov_base, parts[i].iov_len);
        return send_encrypted(line, together, total);
    }
    for (int i = 0; i < count; i++)
        if (send_encrypted(line, parts[i].iov_base, parts[i].iov_len))
            return -1;
    return 0;
}

int line_send(struct line *line, const struct iovec *parts, int count)
{
    struct iovec left[PARTS_MAX];
    if (count > PARTS_MAX)
        return -1;
    if (line->tls)
        return send_parts_encrypted(line, parts, count);
    memcpy(left, parts, sizeof *parts * (size_t)count);
    struct msghdr message = {.msg_iov = left, .msg_iovlen = (size_t)count};
    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(line->descriptor, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return -1;
        size_t done = (size_t)sent;
        while (message.msg_iovlen && done >= message.msg_iov->iov_len) {
            done -= message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        if (message.msg_iovlen) {
            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + done;
            message.msg_iov->iov_len -= done;
        }
    }
    return 0;
}

static long receive_encrypted(struct line *line, void *to, size_t room, int *wants)
{
    pthread_mutex_lock(&line->lock);
    int got = SSL_read(line->tls, to, room > WRITE_MAX ? WRITE_MAX : (int)room);
    int why = got > 0 ? SSL_ERROR_NONE : SSL_get_error(line->tls, got);
    pthread_mutex_unlock(&line->lock);
    *wants = why == SSL_ERROR_WANT_READ;
    return got > 0 ? got : why == SSL_ERROR_ZERO_RETURN ? LINE_CLOSED : LINE_ERROR;
}

long line_receive(struct line *line, void *to, size_t room)
{
    for (;;) {
        int wants = 1;
        if (line->tls) {
            long got = receive_encrypted(line, to, room, &wants);
            if (!wants)
                return got;
        }
        ssize_t got = line->tls ? fill(line) : recv(line->descriptor, to, room, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return LINE_TIMEOUT;
        if (got <= 0 || !line->tls)
            return got;
    }
}
