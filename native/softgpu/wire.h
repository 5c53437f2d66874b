/* What the library and the card's daemon say to each other: mirrored by src/milligpu/softgpu/wire.py.
 *
 * Requests and replies are a header and a body. A reply's status is a CUresult. One request is outstanding per
 * connection; a greeting's reply carries the card's activity page as a file descriptor, a compilation's the object file. */
#pragma once
#include <stdint.h>

enum { WIRE_VERSION = 2 };

enum wire_kind {
    WIRE_HELLO = 1,         /* u32 version -> struct wire_device, and the activity page's descriptor */
    WIRE_RESERVE = 2,       /* u64 bytes */
    WIRE_RELEASE = 3,       /* u64 bytes */
    WIRE_MEMORY = 4,        /* -> u64 free, u64 total */
    WIRE_CONTEXT_OPEN = 5,  /* -> u32 slot of the activity page */
    WIRE_CONTEXT_CLOSE = 6, /* u32 slot */
    WIRE_COMPILE = 7,       /* PTX text -> the log, and a descriptor when it worked */
    WIRE_ATTEND = 9,        /* first on a connection: orders come as requests from now on, and are replied to */
    WIRE_ORDER = 10,        /* first on a connection: i32 pid, u32 enum wire_order, its body -> u32 CUprocessState */
    WIRE_XID = 8,           /* u32 number, of the sort that applications cause */
};

/* What one process may tell another, through the daemon; see checkpoint.c. */
enum wire_order {
    ORDER_STATE = 0,
    ORDER_LOCK = 1,       /* u32 milliseconds; 0: without a limit */
    ORDER_CHECKPOINT = 2,
    ORDER_RESTORE = 3,    /* CUcheckpointGpuPair[] */
    ORDER_UNLOCK = 4,
};

struct wire_request {
    uint32_t kind;
    uint32_t size;
};

struct wire_reply {
    uint32_t status;
    uint32_t size;
};

struct wire_device {
    char name[64];
    uint8_t uuid[16];
    uint64_t memory;
    uint32_t major, minor;
    uint32_t multiprocessors;
    uint32_t threads_per_multiprocessor;
    uint32_t clock_khz;
    uint32_t memory_clock_khz;
    uint32_t bus_width;
    uint32_t l2_bytes;
    uint32_t shared_per_block;
    uint32_t shared_per_block_optin;
    uint32_t shared_per_multiprocessor;
    uint32_t pci_bus;
};
_Static_assert(sizeof(struct wire_device) == 136, "mirrors wire.py");
