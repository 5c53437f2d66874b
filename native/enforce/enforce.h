/* The limits library: the interfaces between its parts.
 *
 * The library takes the driver's place. Calls that it does not wrap go through `cudaapi_real`, a table of the driver's
 * own functions. The table is filled before the program can call anything: with the driver's functions or, if the
 * tenant's pages are missing or invalid, with a function that returns CUDA_ERROR_NO_DEVICE. */
#pragma once
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include "cudaapi.h"
#include "cudaapi_real.h"
#include "folder.h"
#include <stdbool.h>
#include <stdint.h>

#define API __attribute__((visibility("default"))) CUresult

/* ---- tenant.c: the tenant's directory, its pages, the driver's library ---- */
extern const struct mg_limits_page *tenant_limits; /* null: this process has no device */
extern struct mg_usage_page *tenant_usage;
extern int tenant_usage_file;

/* ---- devices.c: the GPU of the page that a device is ---- */
int device_gpu(CUdevice device); /* -1: none */
CUdevice gpu_device(unsigned gpu);
/* The GPU of the current context; -1 if there is none. Costs nothing while one GPU is visible. */
extern int devices_only;
int devices_current(void);
int devices_of_stream(CUstream stream);
void devices_stream_ends(CUstream stream);
void devices_context_ends(void);
void devices_in_child(void);
static inline int current_gpu(void)
{
    return devices_only >= 0 ? devices_only : devices_current();
}
static inline int stream_gpu(CUstream stream)
{
    return devices_only >= 0 ? devices_only : devices_of_stream(stream);
}

/* ---- account.c: what the tenant's processes hold together ---- */
bool account_charge(unsigned gpu, uint64_t bytes); /* all bytes or, beyond the memory limit, none */
void account_add(unsigned gpu, uint64_t bytes);    /* already taken: counted even beyond the memory limit */
void account_give_back(unsigned gpu, uint64_t bytes);
void account_settle(void);
void account_refused(unsigned gpu);
uint64_t account_used(unsigned gpu);
uint64_t account_limit(unsigned gpu);
uint64_t account_round(uint64_t bytes); /* to pages */
void account_before_fork(void);
void account_in_parent(void);
void account_in_child(void);

/* ---- ledger.c: what this process holds, by handle ---- */
enum holding_kind {
    HOLDING_POINTER = 1,
    HOLDING_ARRAY,
    HOLDING_MIPMAP,
    HOLDING_EXTERNAL,
    HOLDING_IMPORT,
    HOLDING_CONTEXT,
    HOLDING_PRIMARY,
    HOLDING_MODULE,
    HOLDING_LIBRARY,
    HOLDING_GRAPH,
    HOLDING_LIMITS /* plus one for each CUlimit */
};
struct holding {
    enum holding_kind kind;
    unsigned gpu;
    uintptr_t handle;
    uint64_t bytes;
    CUcontext context; /* it ends with this context; null: with the process */
    struct holding *next;
};
void ledger_put(struct holding holding);
bool ledger_take(enum holding_kind kind, uintptr_t handle, struct holding *taken);
/* Remove everything that ends with a context from the ledger and the account. */
void ledger_end(CUcontext context);
void ledger_before_fork(void);
void ledger_in_parent(void);
void ledger_in_child(void);

/* ---- granules.c: what the driver takes for allocations of these sizes ---- */
/* Replace one allocation by another in the account, or beyond the memory limit do nothing. Size 0 is none. */
bool granules_change(unsigned gpu, uint64_t from, uint64_t to);
static inline void granules_give_back(unsigned gpu, uint64_t bytes)
{
    granules_change(gpu, bytes, 0);
}
/* One allocation that is large: a multiple of the granule. */
uint64_t granules_round(unsigned gpu, uint64_t bytes);
void granules_before_fork(void);
void granules_in_parent(void);
void granules_in_child(void);

/* ---- charge.c: an allocation, from the request to the holding ---- */
struct charge {
    int gpu;
    uint64_t bytes; /* as requested; the account has what the driver takes for it */
};
/* CUDA_SUCCESS with the bytes charged, or the error to return. */
CUresult charge_begin(struct charge *charge, const char *symbol, uint64_t bytes);
CUresult charge_begin_on(struct charge *charge, const char *symbol, int gpu, uint64_t bytes);
/* Count the refusal and print the reason. */
CUresult charge_refused(const char *symbol, unsigned gpu, uint64_t bytes);
/* Call after the driver returned `status`: records a holding, or gives all bytes back. */
CUresult charge_end(struct charge charge, CUresult status, enum holding_kind kind, uintptr_t handle);
/* Charge `bytes`, call the driver, and hold `*made`, or give the bytes back if the call fails. */
#define ALLOCATE(kind, symbol, bytes, made, call)                                                                      \
    ({                                                                                                                 \
        struct charge charge;                                                                                          \
        CUresult answer = charge_begin(&charge, symbol, bytes);                                                        \
        if (!answer) {                                                                                                 \
            answer = (call);                                                                                           \
            answer = charge_end(charge, answer, kind, answer ? 0 : (uintptr_t)*(made));                                \
        }                                                                                                              \
        answer;                                                                                                        \
    })
/* Give back what the driver's call frees; if the call fails, nothing changes. */
#define GIVE_BACK(kind, handle, call)                                                                                  \
    ({                                                                                                                 \
        struct holding held;                                                                                           \
        bool known = ledger_take(kind, (uintptr_t)(handle), &held);                                                    \
        CUresult answer = (call);                                                                                      \
        if (known && answer)                                                                                           \
            ledger_put(held);                                                                                          \
        else if (known)                                                                                                \
            granules_give_back(held.gpu, held.bytes);                                                                  \
        answer;                                                                                                        \
    })

/* ---- memory.c ---- */
int pointer_gpu(CUdeviceptr pointer); /* the GPU that memory is on */

/* ---- pools.c ---- */
void pools_refresh(void);      /* count again what the driver's pools hold */
bool pools_trim(unsigned gpu); /* release what the pools keep unused; whether any was released */
void pools_before_fork(void);
void pools_in_parent(void);
void pools_in_child(void);

/* ---- virtual.c ---- */
void virtual_before_fork(void);
void virtual_in_parent(void);
void virtual_in_child(void);

/* ---- contexts.c ---- */
void contexts_in_child(void);
