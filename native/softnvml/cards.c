/* Initialization and shutdown, the connections to the GPUs' daemon, and handles. */
#include "softnvml.h"
#include "../softgpu/wire.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct card cards[MOST_CARDS];
unsigned card_count;
static unsigned users; /* counts nvmlInit calls */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A daemon replies at once; one that takes longer than this is gone. */
enum { ANSWER_SECONDS = 30 };

static bool transfer(int socket, void *data, size_t size, bool out)
{
    char *at = data;
    while (size) {
        ssize_t done = out ? send(socket, at, size, MSG_NOSIGNAL) : recv(socket, at, size, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        size -= done;
    }
    return true;
}

nvmlReturn_t ask(int socket, uint32_t kind, const void *body, size_t size, void *reply, size_t *room)
{
    struct wire_request request = {kind, (uint32_t)size};
    struct wire_reply answer;
    if (!transfer(socket, &request, sizeof request, true) || !transfer(socket, (void *)body, size, true)
        || !transfer(socket, &answer, sizeof answer, false) || answer.size > (room ? *room : 0)
        || !transfer(socket, reply, answer.size, false))
        return NVML_ERROR_UNKNOWN; /* the daemon never returns this */
    if (room)
        *room = answer.size;
    return (nvmlReturn_t)answer.status;
}

int card_connect(const struct card *card)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *folder = getenv("MILLIGPU_SOFTGPU");
    if (!folder
        || (size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/gpu%d.sock", folder, card->number)
               >= sizeof address.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {ANSWER_SECONDS, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

nvmlReturn_t card_ask(struct card *card, uint32_t kind, const void *body, size_t size, void *reply, size_t *room)
{
    pthread_mutex_lock(&card->lock);
    if (card->socket < 0)
        card->socket = card_connect(card);
    nvmlReturn_t status = card->socket < 0 ? NVML_ERROR_GPU_IS_LOST : ask(card->socket, kind, body, size, reply, room);
    if (status == NVML_ERROR_UNKNOWN) {
        close(card->socket); /* half a reply may be left in it */
        card->socket = -1;
        status = NVML_ERROR_GPU_IS_LOST;
    }
    pthread_mutex_unlock(&card->lock);
    return status;
}

static bool card_open(struct card *card, int number)
{
    card->number = number;
    card->socket = card_connect(card);
    if (card->socket < 0)
        return false;
    size_t room = sizeof card->facts;
    if (ask(card->socket, WATCH_FACTS, 0, 0, &card->facts, &room) == NVML_SUCCESS && room == sizeof card->facts) {
        pthread_mutex_init(&card->lock, 0);
        return true;
    }
    close(card->socket);
    return false;
}

/* Two processes must not read from one connection. */
static void after_fork(void)
{
    for (unsigned at = 0; at < card_count; at++) {
        close(cards[at].socket);
        cards[at].socket = -1;
        pthread_mutex_init(&cards[at].lock, 0);
    }
}

API nvmlInitWithFlags(unsigned flags)
{
    if (flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
        return NVML_ERROR_INVALID_ARGUMENT;
    static bool prepared;
    pthread_mutex_lock(&lock);
    if (!prepared)
        prepared = !pthread_atfork(0, 0, after_fork);
    if (!users)
        for (int number = card_count = 0; number < MOST_CARDS; number++)
            card_count += card_open(&cards[card_count], number);
    bool found = card_count || flags & NVML_INIT_FLAG_NO_GPUS;
    users += found;
    pthread_mutex_unlock(&lock);
    return found ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}
API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    bool was = users > 0;
    if (was && !--users) {
        for (unsigned at = 0; at < card_count; at++)
            close(cards[at].socket);
        card_count = 0;
    }
    pthread_mutex_unlock(&lock);
    return was ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t ready(void)
{
    return __atomic_load_n(&users, __ATOMIC_ACQUIRE) ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

struct card *card_of(nvmlDevice_t device)
{
    for (unsigned at = 0; at < card_count; at++)
        if ((void *)device == (void *)&cards[at])
            return &cards[at];
    return 0;
}

nvmlReturn_t look(nvmlDevice_t device, const void *answer, struct card **card, struct watch_reading *reading)
{
    if (ready())
        return NVML_ERROR_UNINITIALIZED;
    *card = card_of(device);
    if (!*card || !answer)
        return NVML_ERROR_INVALID_ARGUMENT;
    size_t room = sizeof *reading;
    return card_ask(*card, WATCH_READING, 0, 0, reading, &room);
}

nvmlReturn_t put_text(char *to, unsigned room, const char *text)
{
    if (strlen(text) >= room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

nvmlReturn_t room_for(unsigned found, unsigned *count, const void *list)
{
    unsigned room = *count;
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : found && !list ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t nvmlapi_missing(const char *symbol)
{
    (void)symbol;
    return ready() ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_SUPPORTED;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_DEPRECATED: return "Deprecated";
    case NVML_ERROR_NOT_READY: return "Not ready";
    default: return "Unknown Error";
    }
}
