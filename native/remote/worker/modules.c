/* Modules, libraries and links. Images are kept by the hash of their contents, which is computed here: nobody can leave
 * one under another's name. */
#define _GNU_SOURCE
#include "worker.h"
#include <fcntl.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPTIONS_MAX = 32, LOG_ROOM = 16 << 10, FUNCTIONS_MAX = 1 << 16, PATH_ROOM = 512 };

const char *module_cache;

/* ---- options of the driver's compiler ---- */

struct jit {
    unsigned count;
    CUjit_option names[OPTIONS_MAX];
    void *values[OPTIONS_MAX];
    char *logs[2];
};

static int log_of(uint64_t name)
{
    if (name == CU_JIT_INFO_LOG_BUFFER || name == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
        return 0;
    return name == CU_JIT_ERROR_LOG_BUFFER || name == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES ? 1 : -1;
}

static bool is_safe(uint64_t name)
{
    return name < CU_JIT_NUM_OPTIONS && name != CU_JIT_GLOBAL_SYMBOL_NAMES && name != CU_JIT_GLOBAL_SYMBOL_ADDRESSES
           && name != CU_JIT_GLOBAL_SYMBOL_COUNT && name != CU_JIT_REFERENCED_KERNEL_NAMES
           && name != CU_JIT_REFERENCED_VARIABLE_NAMES;
}

static uint64_t log_value(struct jit *jit, int log, uint64_t name, uint64_t value)
{
    if (!jit->logs[log] && !(jit->logs[log] = calloc(1, LOG_ROOM)))
        end("no memory for a log");
    if (name == CU_JIT_INFO_LOG_BUFFER || name == CU_JIT_ERROR_LOG_BUFFER)
        return (uintptr_t)jit->logs[log];
    return value < LOG_ROOM ? value : LOG_ROOM;
}

static void take_options(struct request *r, struct jit *jit)
{
    uint64_t count = take_u64(r);
    memset(jit, 0, sizeof *jit);
    require(r, count <= OPTIONS_MAX);
    for (uint64_t i = 0; i < count && !r->status; i++) {
        uint64_t name = take_u64(r), value = take_u64(r);
        int log = log_of(name);
        require(r, is_safe(name));
        if (log >= 0)
            value = log_value(jit, log, name, value);
        jit->names[jit->count] = (CUjit_option)name;
        jit->values[jit->count++] = (void *)(uintptr_t)value;
    }
}

static void answer_logs(struct request *r, const struct jit *jit)
{
    for (int i = 0; i < 2; i++)
        answer_block(r, jit->logs[i], jit->logs[i] ? strnlen(jit->logs[i], LOG_ROOM - 1) + 1 : 0);
}

static void free_logs(struct jit *jit)
{
    free(jit->logs[0]);
    free(jit->logs[1]);
}

/* ---- the cache ---- */

static void cache_path(char *path, const unsigned char *hash, const char *suffix)
{
    int used = snprintf(path, PATH_ROOM, "%s/", module_cache);
    for (int i = 0; i < HASH_SIZE; i++)
        used += snprintf(path + used, (size_t)(PATH_ROOM - used), "%02x", hash[i]);
    snprintf(path + used, (size_t)(PATH_ROOM - used), "%s", suffix);
}

static bool has_hash(const char *image, size_t size, const unsigned char *hash)
{
    unsigned char own[HASH_SIZE];
    SHA256((const unsigned char *)image, size, own);
    return !memcmp(own, hash, HASH_SIZE);
}

static char *cache_read(const unsigned char *hash)
{
    char path[PATH_ROOM], *image = NULL;
    struct stat about;
    if (!module_cache)
        return NULL;
    cache_path(path, hash, "");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    if (!fstat(file, &about) && about.st_size > 0 && about.st_size < WIRE_FRAME_MAX)
        image = calloc(1, (size_t)about.st_size + 1);
    if (image
        && (read(file, image, (size_t)about.st_size) != about.st_size
            || !has_hash(image, (size_t)about.st_size, hash))) {
        free(image);
        image = NULL;
    }
    close(file);
    return image;
}

static void cache_write(const unsigned char *hash, const char *image, size_t size)
{
    char path[PATH_ROOM], fresh[PATH_ROOM], suffix[32];
    if (!module_cache || size < IMAGE_HASH_FROM)
        return;
    snprintf(suffix, sizeof suffix, ".%d", getpid());
    cache_path(path, hash, "");
    cache_path(fresh, hash, suffix);
    int file = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    bool is_written = write(file, image, size) == (ssize_t)size;
    if (close(file) || !is_written || rename(fresh, path))
        unlink(fresh);
}

static char *take_image(struct request *r)
{
    unsigned char hash[HASH_SIZE];
    size_t size;
    uint64_t how = take_u64(r);
    take(r, hash, sizeof hash);
    const char *data = take_block(r, &size);
    if (r->status)
        return NULL;
    if (how == IMAGE_HASH) {
        char *kept = cache_read(hash);
        if (!kept)
            r->status = STATUS_NO_IMAGE;
        return kept;
    }
    require(r, how == IMAGE_FULL && data && has_hash(data, size, hash));
    char *image = r->status ? NULL : calloc(1, size + 1);
    if (image) {
        memcpy(image, data, size);
        cache_write(hash, image, size);
    }
    return image;
}

/* ---- what a module contains ---- */

struct kind {
    CUresult (*count)(unsigned *, void *);
    CUresult (*list)(void **, unsigned, void *);
    CUresult (*name)(const char **, void *);
    CUresult (*parameter)(void *, size_t, size_t *, size_t *);
};

static int32_t attribute_of(void *function, int attribute, bool is_kernel)
{
    int value;
    CUdevice device = 0;
    if (is_kernel && real_cuda.cuCtxGetDevice(&device))
        device = 0;
    CUresult status = is_kernel ? real_cuda.cuKernelGetAttribute(&value, attribute, function, device)
                                : real_cuda.cuFuncGetAttribute(&value, attribute, function);
    return status ? INT32_MIN : value;
}

static void answer_function(struct request *r, const struct kind *kind, void *function, bool is_kernel)
{
    const char *name = "";
    int32_t attributes[FUNCTION_ATTRIBUTES];
    uint64_t count = 0;
    kind->name(&name, function);
    answer_u64(r, handle_find(function));
    answer_block(r, name, strlen(name) + 1);
    size_t place = r->used;
    answer_u64(r, 0);
    for (size_t offset, size; !kind->parameter(function, count, &offset, &size); count++) {
        const uint32_t part[2] = {(uint32_t)offset, (uint32_t)size};
        answer_put(r, part, sizeof part);
    }
    count *= 2 * sizeof(uint32_t);
    memcpy(r->reply + place, &count, sizeof count);
    for (int i = 0; i < FUNCTION_ATTRIBUTES; i++)
        attributes[i] = attribute_of(function, i, is_kernel);
    answer_put(r, attributes, sizeof attributes);
}

static void answer_functions(struct request *r, void *owner, bool is_library)
{
    const struct kind library = {(void *)real_cuda.cuLibraryGetKernelCount, (void *)real_cuda.cuLibraryEnumerateKernels,
                                 (void *)real_cuda.cuKernelGetName, (void *)real_cuda.cuKernelGetParamInfo};
    const struct kind module = {(void *)real_cuda.cuModuleGetFunctionCount,
                                (void *)real_cuda.cuModuleEnumerateFunctions, (void *)real_cuda.cuFuncGetName,
                                (void *)real_cuda.cuFuncGetParamInfo};
    const struct kind *kind = is_library ? &library : &module;
    unsigned count = 0;
    CUresult status = kind->count(&count, owner);
    void **functions = !status && count <= FUNCTIONS_MAX ? calloc(count + 1, sizeof *functions) : NULL;
    if (!functions || kind->list(functions, count, owner))
        count = 0; /* the client asks for each by its name */
    answer_u64(r, count);
    for (unsigned i = 0; i < count; i++)
        answer_function(r, kind, functions[i], is_library);
    free(functions);
}

void do_load(struct request *r)
{
    struct jit jit;
    bool is_library = r->head.op == OP_library_load;
    void *loaded = NULL;
    uint64_t owner = take_u64(r);
    take_options(r, &jit);
    char *image = r->status ? NULL : take_image(r);
    if (image && is_library)
        r->status = (int)real_cuda.cuLibraryLoadData((CUlibrary *)&loaded, image, jit.names, jit.values, jit.count,
                                                     NULL, NULL, 0);
    else if (image)
        r->status = (int)real_cuda.cuModuleLoadDataEx((CUmodule *)&loaded, image, jit.count, jit.names, jit.values);
    free(image);
    answer_logs(r, &jit);
    free_logs(&jit);
    if (r->status)
        return;
    handle_set(owner, loaded);
    answer_functions(r, loaded, is_library);
}

/* ---- links: the driver writes their logs until they are destroyed ---- */

static struct link {
    struct link *next;
    CUlinkState state;
    struct jit jit;
} *links;

static struct link *link_of(struct request *r)
{
    CUlinkState state = take_handle(r);
    struct link *link = links;
    while (link && link->state != state)
        link = link->next;
    require(r, link);
    return link;
}

void do_link_create(struct request *r)
{
    struct link *link = calloc(1, sizeof *link);
    uint64_t number = take_u64(r);
    if (!link)
        end("no memory for a link");
    take_options(r, &link->jit);
    if (!r->status)
        r->status = (int)real_cuda.cuLinkCreate_v2(link->jit.count, link->jit.names, link->jit.values, &link->state);
    if (r->status) {
        free_logs(&link->jit);
        free(link);
        return;
    }
    link->next = links;
    links = link;
    handle_set(number, link->state);
}

void do_link_add(struct request *r)
{
    struct jit jit;
    size_t size;
    struct link *link = link_of(r);
    uint64_t type = take_u64(r);
    const char *name = take_string(r);
    take_options(r, &jit);
    void *data = take_block(r, &size);
    if (!r->status)
        r->status = (int)real_cuda.cuLinkAddData_v2(link->state, (CUjitInputType)type, data, size, name, jit.count,
                                                    jit.names, jit.values);
    if (link)
        answer_logs(r, &link->jit);
    free_logs(&jit);
}

void do_link_complete(struct request *r)
{
    void *image = NULL;
    size_t size = 0;
    struct link *link = link_of(r);
    if (!r->status)
        r->status = (int)real_cuda.cuLinkComplete(link->state, &image, &size);
    if (link)
        answer_logs(r, &link->jit);
    if (!r->status)
        answer_block(r, image, size);
}

void do_link_destroy(struct request *r)
{
    struct link *link = link_of(r), **at = &links;
    if (!link)
        return;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    r->status = (int)real_cuda.cuLinkDestroy(link->state);
    free_logs(&link->jit);
    free(link);
}
