/* What the parts of the remote libcuda.so.1 share. */
#pragma once
#include <cuda.h>
#include "cudaapi.h"
#include "link.h"
#include "remote_asked.h"

#define API __attribute__((visibility("default"))) CUresult
enum { STATUS_INVALID_VALUE = CUDA_ERROR_INVALID_VALUE };

static inline uint64_t stream_number(CUstream stream)
{
    return handle_number(stream ? stream : cudaapi_null_stream);
}

/* facts.c */
extern struct wire_welcome *facts;
CUresult facts_device(CUdevice device); /* an error unless there is such a device */

/* contexts.c */
CUcontext context_current(void);

/* wait.c: what is known to be done on the device */
bool idle_since(CUcontext context, uint64_t change); /* everything until this change is done */
bool foreseen_copy(void *to, CUdeviceptr from, size_t size);

/* ranges.c: which memory is where */
struct range {
    uintptr_t base;
    size_t size;
    struct slabs *slabs; /* of which it is a part */
    bool host;
    bool managed;
    bool registered;
    unsigned flags;
};
bool range_find(uintptr_t address, struct range *found);
bool range_add(const struct range *range); /* false: it overlaps another */
bool range_remove(uintptr_t base, struct range *removed);

/* slabs.c */
CUresult slab_take(CUdeviceptr *found, size_t size, CUstream stream); /* 0: from the driver, please */
void slab_give(const struct range *range, CUstream stream);
void slabs_forget(CUcontext context);

/* capture.c */
bool is_capturing(void); /* anything */
CUresult stream_is_captured(CUstream stream, bool *captured);

/* host.c */
CUresult host_note(uint64_t word); /* a kernel gets this; it may be memory of this process */
CUresult host_send(void);          /* send what this process changed of memory that kernels use */
CUresult host_free(uintptr_t base);

/* copies.c */
CUresult copy_to_device(CUdeviceptr to, const void *from, size_t size, CUstream stream);
CUresult copy_from_device(void *to, CUdeviceptr from, size_t size, CUstream stream, bool later);

/* boxes.c */
CUresult copy_captured(uint64_t to, uint64_t from, size_t size, CUstream stream); /* one end is host memory */

/* functions.c: what is known of each kernel */
struct layout {
    uint64_t function;
    char *name;
    uint32_t count, total;
    struct {
        uint32_t offset, size;
    } *parts;
    int32_t attributes[FUNCTION_ATTRIBUTES];
    bool attributes_known;
};
bool functions_learn(struct message *m, uint64_t owner);
uint64_t function_find(uint64_t owner, const char *name);
CUresult layout_find(uint64_t function, struct layout *found);
