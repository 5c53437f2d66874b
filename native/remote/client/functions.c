/* What is known of each kernel: it came with the module. */
#include "client.h"
#include <pthread.h>
#include <stdlib.h>

enum { BUCKETS = 1024, PARAMETERS_MAX = 1024, PARAMETER_BYTES = 32764 }; /* CUDA's own limit of all together */

struct function {
    struct function *next_by_name, *next_by_number;
    uint64_t owner;
    struct layout layout;
};
static struct {
    pthread_mutex_t lock;
    struct function *by_name[BUCKETS], *by_number[BUCKETS];
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned name_bucket(uint64_t owner, const char *name)
{
    unsigned hash = (unsigned)(owner / HANDLE_STEP);
    while (*name)
        hash = hash * 31 + (unsigned char)*name++;
    return hash % BUCKETS;
}

static unsigned number_bucket(uint64_t number)
{
    return (unsigned)(number / HANDLE_STEP % BUCKETS);
}

static struct function *by_number(uint64_t number)
{
    struct function *function = known.by_number[number_bucket(number)];
    while (function && function->layout.function != number)
        function = function->next_by_number;
    return function;
}

static void add(struct function *function)
{
    struct function **named = &known.by_name[name_bucket(function->owner, function->layout.name)];
    struct function **numbered = &known.by_number[number_bucket(function->layout.function)];
    function->next_by_name = *named;
    function->next_by_number = *numbered;
    *named = *numbered = function;
}

/* The server says which parts of this process's memory are parameters: not more than any kernel can have. */
static bool measure(struct layout *layout, uint64_t offset, uint64_t size)
{
    if (offset > PARAMETER_BYTES || size > PARAMETER_BYTES - offset)
        return false;
    if (offset + size > layout->total)
        layout->total = (uint32_t)(offset + size);
    return true;
}

static struct function *read_function(struct message *m, uint64_t owner)
{
    size_t size, layout_size;
    uint64_t number = get_u64(m);
    const char *name = get_inside(m, &size);
    const void *parts = get_inside(m, &layout_size);
    struct function *function = calloc(1, sizeof *function);
    if (!function || !name || !size || name[size - 1] || !parts)
        return NULL;
    struct layout *layout = &function->layout;
    function->owner = owner;
    layout->function = number;
    layout->name = strdup(name);
    layout->count = (uint32_t)(layout_size / sizeof *layout->parts);
    layout->parts = malloc(layout_size + 1);
    if (!layout->name || !layout->parts)
        return NULL;
    memcpy(layout->parts, parts, layout->count * sizeof *layout->parts);
    for (uint32_t i = 0; i < layout->count; i++)
        if (!measure(layout, layout->parts[i].offset, layout->parts[i].size))
            return NULL;
    layout->attributes_known = get(m, layout->attributes, sizeof layout->attributes);
    return function;
}

bool functions_learn(struct message *m, uint64_t owner)
{
    uint64_t count = get_u64(m);
    for (uint64_t i = 0; i < count; i++) {
        struct function *function = read_function(m, owner);
        if (!function)
            return false;
        pthread_mutex_lock(&known.lock);
        add(function);
        pthread_mutex_unlock(&known.lock);
    }
    return true;
}

uint64_t function_find(uint64_t owner, const char *name)
{
    pthread_mutex_lock(&known.lock);
    struct function *function = known.by_name[name_bucket(owner, name)];
    while (function && (function->owner != owner || strcmp(function->layout.name, name)))
        function = function->next_by_name;
    uint64_t number = function ? function->layout.function : 0;
    pthread_mutex_unlock(&known.lock);
    return number;
}

/* A function that did not come with a module, such as that of a kernel: ask once. */
static CUresult ask_layout(uint64_t number, struct layout *found)
{
    struct function *function = calloc(1, sizeof *function);
    if (!function || !(function->layout.parts = calloc(PARAMETERS_MAX, sizeof *function->layout.parts)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct layout *layout = &function->layout;
    layout->function = number;
    layout->name = "";
    for (size_t offset = 0, size = 0; layout->count < PARAMETERS_MAX; layout->count++) {
        CUresult status = cuFuncGetParamInfo((CUfunction)number, layout->count, &offset, &size);
        if (status == CUDA_ERROR_INVALID_VALUE)
            break; /* that was the last */
        if (status)
            return status;
        if (!measure(layout, offset, size))
            return CUDA_ERROR_INVALID_IMAGE;
        layout->parts[layout->count].offset = (uint32_t)offset;
        layout->parts[layout->count].size = (uint32_t)size;
    }
    pthread_mutex_lock(&known.lock);
    add(function);
    pthread_mutex_unlock(&known.lock);
    *found = *layout;
    return CUDA_SUCCESS;
}

CUresult layout_find(uint64_t number, struct layout *found)
{
    pthread_mutex_lock(&known.lock);
    struct function *function = by_number(number);
    if (function)
        *found = function->layout;
    pthread_mutex_unlock(&known.lock);
    return function ? CUDA_SUCCESS : ask_layout(number, found);
}

static bool known_attribute(uint64_t number, unsigned attribute, int *value)
{
    pthread_mutex_lock(&known.lock);
    struct function *function = by_number(number);
    bool is_known = function && function->layout.attributes_known && attribute < FUNCTION_ATTRIBUTES
                    && function->layout.attributes[attribute] != INT32_MIN;
    if (is_known)
        *value = function->layout.attributes[attribute];
    pthread_mutex_unlock(&known.lock);
    return is_known;
}

static void forget_attributes(uint64_t number)
{
    pthread_mutex_lock(&known.lock);
    struct function *function = by_number(number);
    if (function)
        function->layout.attributes_known = false;
    pthread_mutex_unlock(&known.lock);
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    if (value && known_attribute(handle_number(function), attribute, value))
        return CUDA_SUCCESS;
    return ask_cuFuncGetAttribute(value, attribute, function);
}

/* What came is true for the device that was current. */
API cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
    if (value && facts && facts->devices == 1 && known_attribute(handle_number(kernel), attribute, value))
        return CUDA_SUCCESS;
    return ask_cuKernelGetAttribute(value, attribute, kernel, device);
}

API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    forget_attributes(handle_number(function));
    return ask_cuFuncSetAttribute(function, attribute, value);
}

API cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
    forget_attributes(handle_number(kernel));
    return ask_cuKernelSetAttribute(attribute, value, kernel, device);
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t number = function_find(handle_number(module), name);
    if (!number)
        return ask_cuModuleGetFunction(function, module, name);
    *function = (CUfunction)(uintptr_t)number;
    return CUDA_SUCCESS;
}

API cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    if (!kernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t number = function_find(handle_number(library), name);
    if (!number)
        return ask_cuLibraryGetKernel(kernel, library, name);
    *kernel = (CUkernel)(uintptr_t)number;
    return CUDA_SUCCESS;
}

/* The program's function that says how much shared memory a block needs cannot be asked from the worker. */
API cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function, CUoccupancyB2DSize of_block,
                                              size_t shared, int most, unsigned int flags)
{
    struct message m;
    if (!grid || !block)
        return CUDA_ERROR_INVALID_VALUE;
    if (of_block)
        return CUDA_ERROR_NOT_SUPPORTED;
    int status = message_begin(&m, OP_occupancy);
    if (status)
        return (CUresult)status;
    put_u64(&m, handle_number(function));
    put_u64(&m, shared);
    put_u64(&m, (uint64_t)most);
    put_u64(&m, flags);
    if ((status = message_call(&m)))
        return (CUresult)status;
    *grid = (int)get_u64(&m);
    *block = (int)get_u64(&m);
    return CUDA_SUCCESS;
}

API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize of_block,
                                     size_t shared, int most)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, of_block, shared, most, 0);
}
