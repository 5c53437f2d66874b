/* The software GPU's management library: the interfaces between its parts. */
#pragma once
#define _GNU_SOURCE
#include "nvmlapi.h"
#include "watch.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define API __attribute__((visibility("default"))) nvmlReturn_t

enum { MOST_CARDS = 16, MOST_BODY = 1 << 20 };

struct card {
    int socket; /* -1 after a fork, until it is used again */
    int number; /* as in the name of its socket */
    pthread_mutex_t lock;
    struct watch_facts facts;
};
extern struct card cards[MOST_CARDS];
extern unsigned card_count;

nvmlReturn_t ready(void); /* NVML_SUCCESS between init and shutdown */
int card_connect(const struct card *card);
/* Send a request on the given socket, or on the GPU's. `room` is the size of the reply buffer on entry and of the
 * reply on return. */
nvmlReturn_t ask(int socket, uint32_t kind, const void *body, size_t size, void *reply, size_t *room);
nvmlReturn_t card_ask(struct card *card, uint32_t kind, const void *body, size_t size, void *reply, size_t *room);

/* The checks at the start of almost every function: NVML is initialized, the handle is valid, there is room for the
 * result, and the GPU is not lost. */
nvmlReturn_t look(nvmlDevice_t device, const void *answer, struct card **card, struct watch_reading *reading);
#define LOOK(device, answer)                                                                                           \
    struct card *card;                                                                                                 \
    struct watch_reading reading;                                                                                      \
    nvmlReturn_t status = look(device, answer, &card, &reading);                                                       \
    if (status)                                                                                                        \
    return status
struct card *card_of(nvmlDevice_t device); /* null if it is not a handle of this library */

nvmlReturn_t put_text(char *to, unsigned room, const char *text);
/* How lists are returned: the whole list, or its length. */
nvmlReturn_t room_for(unsigned found, unsigned *count, const void *list);
void put_pci(const struct watch_facts *facts, nvmlPciInfo_t *pci);
