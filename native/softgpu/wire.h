/* The protocol between the library and the GPU's daemon; mirrored by src/milligpu/softgpu/driver_wire.py.
 *
 * Requests and replies consist of a header and a body. A reply's status is a CUresult. Each connection has at most one
 * outstanding request. The reply to a greeting carries the GPU's activity page as a file descriptor, the reply to a
 * compilation the object file. */
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
    WIRE_COMPILE = 7,       /* PTX text -> the log, and a descriptor on success */
    WIRE_XID = 8,           /* u32 number of an XID that applications cause */
    /* The next two come first on a connection. Client: the daemon sends requests from now on, and this process replies.
     * Request: i32 pid, u32 enum wire_checkpoint, its body -> u32 CUprocessState. */
    WIRE_CHECKPOINT_CLIENT = 9,
    WIRE_CHECKPOINT_REQUEST = 10,
};

/* What one process may request of another, through the daemon; see checkpoint.c. */
enum wire_checkpoint {
    CHECKPOINT_STATE = 0,
    CHECKPOINT_LOCK = 1, /* u32 milliseconds; 0: no limit */
    CHECKPOINT_SAVE = 2,
    CHECKPOINT_RESTORE = 3, /* CUcheckpointGpuPair[] */
    CHECKPOINT_UNLOCK = 4,
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
_Static_assert(sizeof(struct wire_device) == 136, "mirrors driver_wire.py");
