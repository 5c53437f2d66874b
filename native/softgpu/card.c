/* The connection to a GPU's daemon. For this process, a GPU that cannot be reached does not exist. */
#include "softgpu.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A GPU that does not answer within this time is lost; compiling the largest modules takes a few seconds. */
enum { ANSWER_SECONDS = 120 };
static const char SOCKETS[] = "MILLIGPU_SOFTGPU"; /* the variable with the directory of the GPUs' sockets */

bool wire_send(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        size -= sent;
    }
    return true;
}

/* Receive exactly `size` bytes, and a descriptor if one is attached. */
static bool receive_all(int fd, void *data, size_t size, int *descriptor)
{
    char *at = data;
    while (size) {
        union {
            char room[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec part = {at, size};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
        ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header && header->cmsg_type == SCM_RIGHTS) {
            int received;
            memcpy(&received, CMSG_DATA(header), sizeof received);
            if (descriptor && *descriptor < 0)
                *descriptor = received;
            else
                close(received);
        }
        at += got;
        size -= got;
    }
    return true;
}

bool wire_receive(int fd, void *data, size_t size)
{
    return receive_all(fd, data, size, 0);
}

static bool skip(int fd, size_t size)
{
    char waste[4096];
    for (size_t part; size; size -= part) {
        part = size < sizeof waste ? size : sizeof waste;
        if (!receive_all(fd, waste, part, 0))
            return false;
    }
    return true;
}

static CUresult exchange(struct card *card, enum wire_kind kind, const void *body, size_t size, void *reply,
                         size_t *room, int *descriptor)
{
    struct wire_request request = {kind, (uint32_t)size};
    struct wire_reply answer;
    if (size > UINT32_MAX || !wire_send(card->socket, &request, sizeof request) || !wire_send(card->socket, body, size)
        || !receive_all(card->socket, &answer, sizeof answer, descriptor))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    size_t wanted = room && answer.size > *room ? *room : room ? answer.size : 0;
    if (!receive_all(card->socket, reply, wanted, descriptor) || !skip(card->socket, answer.size - wanted))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (room)
        *room = wanted;
    return (CUresult)answer.status;
}

CUresult card_call(struct card *card, enum wire_kind kind, const void *body, size_t size, void *reply, size_t *room,
                   int *descriptor)
{
    pthread_mutex_lock(&card->lock);
    CUresult status = card->socket < 0 ? CUDA_ERROR_DEVICE_UNAVAILABLE
                                       : exchange(card, kind, body, size, reply, room, descriptor);
    if (status == CUDA_ERROR_DEVICE_UNAVAILABLE && card->socket >= 0) {
        close(card->socket); /* half a reply may be left in it */
        card->socket = -1;
    }
    pthread_mutex_unlock(&card->lock);
    return status;
}

CUresult card_reserve(struct card *card, size_t bytes)
{
    uint64_t amount = bytes;
    return card_call(card, WIRE_RESERVE, &amount, sizeof amount, 0, 0, 0);
}

void card_release(struct card *card, size_t bytes)
{
    uint64_t amount = bytes;
    card_call(card, WIRE_RELEASE, &amount, sizeof amount, 0, 0, 0);
}

static bool map_activity(struct card *card, int descriptor)
{
    void *page = mmap(0, sizeof *card->activity, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    card->activity = page == MAP_FAILED ? 0 : page;
    return card->activity && card->activity->magic == ACTIVITY_MAGIC && card->activity->version == ACTIVITY_VERSION;
}

static int connect_card(const char *folder, int number)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/gpu%d.sock", folder, number)
        >= sizeof address.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int card_connect_any(void)
{
    const char *folder = getenv(SOCKETS);
    int fd = -1;
    for (int number = 0; folder && fd < 0 && number < MOST_CARDS; number++)
        fd = connect_card(folder, number);
    return fd;
}

static bool card_open(struct card *card, const char *folder, int number)
{
    card->socket = connect_card(folder, number);
    struct timeval patience = {ANSWER_SECONDS, 0};
    setsockopt(card->socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    pthread_mutex_init(&card->lock, 0);
    uint32_t version = WIRE_VERSION;
    size_t room = sizeof card->device;
    int descriptor = -1;
    if (card->socket >= 0
        && card_call(card, WIRE_HELLO, &version, sizeof version, &card->device, &room, &descriptor) == CUDA_SUCCESS
        && room == sizeof card->device && descriptor >= 0 && map_activity(card, descriptor))
        return true;
    if (card->socket >= 0)
        close(card->socket);
    return false;
}

bool card_open_uuid(struct card *card, const CUuuid *uuid)
{
    const char *folder = getenv(SOCKETS);
    for (int number = 0; folder && number < MOST_CARDS; number++) {
        if (!card_open(card, folder, number))
            continue;
        if (!memcmp(card->device.uuid, uuid->bytes, sizeof card->device.uuid))
            return true;
        close(card->socket);
    }
    return false;
}

static bool uuid_matches(const struct wire_device *device, const char *text, size_t length)
{
    char name[48] = "GPU-";
    int at = 4;
    for (int byte = 0; byte < 16; byte++)
        at += sprintf(name + at, "%s%02x", byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "",
                      device->uuid[byte]);
    return length >= 5 && length <= (size_t)at && !strncmp(name, text, length);
}

/* Read CUDA_VISIBLE_DEVICES as the driver does: numbers or UUID prefixes; the first invalid one ends the list. */
static int choose_visible(struct card *cards, int count, const char *list)
{
    struct card chosen[MOST_CARDS];
    int used[MOST_CARDS] = {0}, found = 0;
    while (*list && found < MOST_CARDS) {
        size_t length = strcspn(list, ",");
        char *end;
        long number = strtol(list, &end, 10);
        int pick = end == list + length && length && number >= 0 && number < count ? (int)number : -1;
        for (int at = 0; pick < 0 && at < count; at++)
            if (uuid_matches(&cards[at].device, list, length))
                pick = at;
        if (pick < 0 || used[pick])
            break;
        used[pick] = 1;
        chosen[found++] = cards[pick];
        list += length + (list[length] == ',');
    }
    for (int at = 0; at < count; at++)
        if (!used[at])
            close(cards[at].socket);
    memcpy(cards, chosen, found * sizeof *cards);
    return found;
}

int cards_open(struct card *cards)
{
    const char *folder = getenv(SOCKETS), *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    for (int number = 0; folder && number < MOST_CARDS; number++)
        if (card_open(&cards[count], folder, number))
            count++;
    if (visible && count)
        count = choose_visible(cards, count, visible);
    for (int at = 0; at < count; at++) {
        cards[at].ordinal = at;
        pthread_mutex_init(&cards[at].lock, 0);
    }
    return count;
}
