/* What client and worker agree on: frames, the handshake, and how handles are numbered.
 *
 * One connection carries everything, and the worker starts operations in the order in which they come. So the order of
 * bytes is the order of the program, over all its threads. Fields are little endian and padded to 8 bytes. The numbers
 * of operations are in operations.toml. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    WIRE_MAGIC = 0x6d677264,
    WIRE_VERSION = 1,     /* of this protocol */
    WIRE_VERSION_MIN = 1, /* the oldest that this side still speaks */
    WIRE_ALIGN = 8,
    WIRE_PIECE = 1 << 20,    /* larger copies go in pieces, so that other threads' messages get in between */
    WIRE_FRAME_MAX = 1 << 28 /* the largest frame: a module of 256 MiB */
};

struct wire_head {
    uint32_t length; /* of what follows, with padding */
    uint16_t op;     /* in answers: enum wire_answer */
    uint16_t flags;
    uint32_t lane;   /* the client's thread */
    uint32_t serial; /* of the request; its answer repeats it */
};
_Static_assert(sizeof(struct wire_head) == 16, "a frame's head");

enum { WIRE_WANTS_REPLY = 1 };
enum wire_answer {
    ANSWER_REPLY = 1, /* status, the error that was kept for the lane, results */
    ANSWER_DATA = 2,  /* cookie, offset, size, bytes of a copy to the host */
    ANSWER_BEAT = 3   /* the worker lives, and an operation takes long */
};

enum wire_api { API_CUDA = 1, API_NVML = 2 };
enum { KEY_SIZE = 32, SESSION_SIZE = 32 };

/* Before anything else, in the clear: which session this connection belongs to. */
struct wire_preamble {
    char magic[8]; /* "mgpu-wrk" */
    char session[SESSION_SIZE];
};
#define PREAMBLE_MAGIC "mgpu-wrk"
#define CONTROL_MAGIC "mgpu-ctl" /* instead: what follows is TLS with the server itself, and its messages */

/* The body of the first message. The key proves that the server granted this session. */
struct wire_hello {
    uint32_t magic, version, version_min, api;
    uint32_t release; /* CUDA_VERSION of the client's header */
    uint32_t reserved;
    unsigned char key[KEY_SIZE];
};

enum { FACT_ATTRIBUTES = 160, FACT_DEVICES = 32, FUNCTION_ATTRIBUTES = 16 };
struct wire_device {
    char name[128];
    unsigned char uuid[16];
    uint64_t memory;
    int32_t attributes[FACT_ATTRIBUTES]; /* by their numbers */
    int32_t statuses[FACT_ATTRIBUTES];   /* of asking for each */
    int32_t peers[FACT_DEVICES];
};
struct wire_welcome {
    uint32_t version; /* the newest that both sides speak */
    uint32_t driver;
    uint32_t devices;
    uint32_t device_size; /* sizeof(struct wire_device) */
    struct wire_device device[];
};

/* Handles below 16 stand for themselves: null, and the default streams. */
enum { HANDLE_STEP = 16 };
#define HANDLE_CLIENT UINT64_C(0x100000000) /* from here on chosen by the client */
#define HANDLE_SERVER UINT64_C(0x200000000) /* from here on chosen by the worker, for what nobody announced */
#define HANDLES_MAX (UINT64_C(1) << 24)     /* of each; a program that makes more has a leak */

/* A module goes as the hash of its contents if the worker may have it, else in full. */
enum { IMAGE_FULL = 0, IMAGE_HASH = 1, HASH_SIZE = 32, IMAGE_HASH_FROM = 64 << 10 };
enum { STATUS_NO_IMAGE = 0x10001 }; /* not a CUresult: send it in full */

/* Memory of the client that kernels use has the same address on both sides. Such memory is allocated from this range.
 */
#define HOST_BASE UINT64_C(0x5f0000000000)
#define HOST_SPAN (UINT64_C(64) << 30)
enum { HOST_LINE = 64 }; /* changes are found in units of this */

/* The next run of lines in which two copies of memory differ: its length, and where it begins in `at`; 0: none. */
static inline size_t next_change(const char *base, const char *shadow, size_t size, size_t *at)
{
    size_t end, line = HOST_LINE;
    for (; *at < size; *at += HOST_LINE) {
        line = size - *at < HOST_LINE ? size - *at : HOST_LINE;
        if (memcmp(base + *at, shadow + *at, line))
            break;
    }
    for (end = *at; end < size && end - *at < WIRE_PIECE / 2; end += line) {
        line = size - end < HOST_LINE ? size - end : HOST_LINE;
        if (memcmp(base + end, shadow + end, line))
            continue;
        break;
    }
    return end - *at;
}

/* One end of a copy of a line, a rectangle or a box. */
enum wire_place {
    PLACE_MESSAGE = 1, /* packed, in a message */
    PLACE_HOST = 2,    /* memory of the client that has the same address on both sides */
    PLACE_DEVICE = 3,
    PLACE_ARRAY = 4
};
enum { BOX_OUT_MAX = 64 << 20 }; /* bytes of a box that come in one answer */

/* The copies that followed a synchronization last time, and come with its answer. */
enum { FORESEEN = 4, FORESEEN_MAX = 16 << 10 };

struct wire_shape {
    uint32_t grid[3], block[3], shared, reserved;
};

static inline size_t padded(size_t size)
{
    return (size + WIRE_ALIGN - 1) & ~(size_t)(WIRE_ALIGN - 1);
}
