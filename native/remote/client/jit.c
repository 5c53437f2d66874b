#include "jit.h"
#include <pthread.h>
#include <stdlib.h>

static bool is_pointer(CUjit_option name)
{
    return name == CU_JIT_GLOBAL_SYMBOL_NAMES || name == CU_JIT_GLOBAL_SYMBOL_ADDRESSES
           || name == CU_JIT_GLOBAL_SYMBOL_COUNT;
}

void jit_put(struct message *m, const struct jit_options *options)
{
    uint64_t count = 0;
    for (unsigned i = 0; i < options->count; i++)
        count += !is_pointer(options->names[i]);
    put_u64(m, count);
    for (unsigned i = 0; i < options->count; i++)
        if (!is_pointer(options->names[i])) {
            put_u64(m, (uint64_t)options->names[i]);
            put_u64(m, (uint64_t)(uintptr_t)options->values[i]);
        }
}

static void **value_of(const struct jit_options *options, CUjit_option name)
{
    for (unsigned i = 0; i < options->count; i++)
        if (options->names[i] == name)
            return &options->values[i];
    return NULL;
}

static void get_log(struct message *m, const struct jit_options *options, CUjit_option text, CUjit_option size)
{
    size_t length;
    const char *log = get_inside(m, &length);
    void **to = value_of(options, text), **room = value_of(options, size);
    if (!log || !room)
        return;
    size_t fits = (size_t)*room < length ? (size_t)*room : length;
    if (to && *to)
        memcpy(*to, log, fits);
    *room = (void *)(uintptr_t)fits;
}

void jit_get_logs(struct message *m, const struct jit_options *options)
{
    get_log(m, options, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
    get_log(m, options, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
}

/* ---- the linker, which has options of its own and keeps its result until it is destroyed ---- */

struct linker {
    struct linker *next;
    uint64_t number;
    struct jit_options options;
    void *result;
};
static struct linker *linkers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct linker *linker_of(CUlinkState state)
{
    pthread_mutex_lock(&lock);
    struct linker *linker = linkers;
    while (linker && linker->number != handle_number(state))
        linker = linker->next;
    pthread_mutex_unlock(&lock);
    return linker;
}

API cuLinkCreate_v2(unsigned int count, CUjit_option *names, void **values, CUlinkState *state)
{
    struct message m;
    struct linker *linker = state ? calloc(1, sizeof *linker) : NULL;
    if (!linker)
        return state ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *linker = (struct linker){.number = handle_new(), .options = {count, names, values}};
    int status = message_begin(&m, OP_link_create);
    if (!status) {
        put_u64(&m, linker->number);
        jit_put(&m, &linker->options);
        status = message_send(&m);
    }
    if (status) {
        free(linker);
        return (CUresult)status;
    }
    pthread_mutex_lock(&lock);
    linker->next = linkers;
    linkers = linker;
    pthread_mutex_unlock(&lock);
    *state = (CUlinkState)(uintptr_t)linker->number;
    return CUDA_SUCCESS;
}

API cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                     unsigned int count, CUjit_option *names, void **values)
{
    struct message m;
    struct linker *linker = linker_of(state);
    const struct jit_options options = {count, names, values};
    if (!linker || !data)
        return CUDA_ERROR_INVALID_HANDLE;
    int status = message_begin(&m, OP_link_add);
    if (status)
        return (CUresult)status;
    put_u64(&m, linker->number);
    put_u64(&m, type);
    put_string(&m, name);
    jit_put(&m, &options);
    put_u64(&m, size);
    status = message_call_with(&m, data, size);
    if (status != link_status_lost)
        jit_get_logs(&m, &linker->options);
    return (CUresult)status;
}

API cuLinkComplete(CUlinkState state, void **result, size_t *size)
{
    struct message m;
    struct linker *linker = linker_of(state);
    size_t length;
    if (!linker || !result)
        return CUDA_ERROR_INVALID_HANDLE;
    int status = message_begin(&m, OP_link_complete);
    if (status)
        return (CUresult)status;
    put_u64(&m, linker->number);
    status = message_call(&m);
    if (status != link_status_lost)
        jit_get_logs(&m, &linker->options);
    if (status)
        return (CUresult)status;
    const void *image = get_inside(&m, &length);
    char *copy = image ? realloc(linker->result, length + 1) : NULL;
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, image, length);
    copy[length] = 0;
    *result = linker->result = copy;
    if (size)
        *size = length;
    return CUDA_SUCCESS;
}

API cuLinkDestroy(CUlinkState state)
{
    struct message m;
    struct linker *linker = linker_of(state);
    if (!linker)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    struct linker **at = &linkers;
    while (*at && *at != linker)
        at = &(*at)->next;
    if (*at)
        *at = linker->next;
    pthread_mutex_unlock(&lock);
    int status = message_begin(&m, OP_link_destroy);
    if (!status) {
        put_u64(&m, linker->number);
        status = message_send(&m);
    }
    free(linker->result);
    free(linker);
    return (CUresult)status;
}
