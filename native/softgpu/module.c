/* Modules: PTX goes to the GPU's compiler, and the returned machine code is loaded. */
#include "softgpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The largest log; clients rarely have larger buffers. */
enum { LOG_ROOM = 8192 };
/* Mirrors the daemon's driver_wire.py. */
enum { LARGEST_IMAGE = 256 << 20 };
static const uint32_t FATBIN_WRAPPER = 0x466243b1, FATBIN = 0xba55ed50;

/* A container of one program for several GPUs; the daemon unpacks it. */
struct fatbin {
    uint32_t magic;
    uint16_t version, head;
    uint64_t size; /* size of what follows the header */
};

/* The wrapper that compilers add when they link the container into a program. */
struct fatbin_wrapper {
    uint32_t magic, version;
    const void *container, *more;
};

static size_t fatbin_size(const void *image)
{
    struct fatbin head;
    memcpy(&head, image, sizeof head);
    return head.size <= LARGEST_IMAGE ? head.head + head.size : SIZE_MAX;
}

struct jit_options {
    char *error_log;
    size_t error_room;
    size_t *error_size; /* the option's own value, which receives the length written */
};

static void read_options(unsigned count, const CUjit_option *options, void **values, struct jit_options *read)
{
    for (unsigned at = 0; options && values && at < count; at++) {
        if (options[at] == CU_JIT_ERROR_LOG_BUFFER)
            read->error_log = values[at];
        else if (options[at] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            read->error_room = (size_t)(uintptr_t)values[at];
            read->error_size = (size_t *)&values[at];
        }
    }
}

static void write_log(const struct jit_options *options, const char *log, size_t size)
{
    if (options->error_size)
        *options->error_size = 0;
    if (!options->error_log || !options->error_room)
        return;
    size_t length = size < options->error_room - 1 ? size : options->error_room - 1;
    memcpy(options->error_log, log, length);
    options->error_log[length] = 0;
    if (options->error_size)
        *options->error_size = length;
}

static bool adopt_globals(struct module *module)
{
    for (uint32_t at = 0; at < module->image->global_count; at++) {
        const struct sg_global *global = &module->image->globals[at];
        if (global->size && memory_adopt(module->context, global->address, global->size, MEMORY_MODULE))
            return false;
    }
    return true;
}

struct module *module_new(struct context *context, int descriptor)
{
    struct module *module = calloc(1, sizeof *module);
    if (!module || !(module->image = image_load(descriptor, &module->memory, &module->size))) {
        free(module);
        return 0;
    }
    module->context = context;
    module->functions = calloc(module->image->kernel_count + 1, sizeof *module->functions);
    for (uint32_t at = 0; module->functions && at < module->image->kernel_count; at++) {
        struct function *function = &module->functions[at];
        *function = (struct function){.kernel = &module->image->kernels[at], .module = module};
        function->handle = handle_new(HANDLE_FUNCTION, function);
    }
    module->handle = handle_new(HANDLE_MODULE, module);
    return module->functions && adopt_globals(module) ? module : 0;
}

/* Find the text or the container, and its length. Machine code of real GPUs is not supported. */
static CUresult find_image(const void **image, size_t *size)
{
    uint32_t magic;
    if (!*image)
        return CUDA_ERROR_INVALID_VALUE;
    /* PTX text may be shorter than a magic number, but not shorter than its terminating zero. */
    for (unsigned at = 0; at < sizeof magic; at++)
        if (!((const char *)*image)[at])
            return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&magic, *image, sizeof magic);
    if (!memcmp(*image, "\177ELF", 4))
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (magic == FATBIN_WRAPPER) {
        *image = ((const struct fatbin_wrapper *)*image)->container;
        if (!*image || memcmp(*image, &FATBIN, sizeof FATBIN))
            return CUDA_ERROR_INVALID_IMAGE;
        magic = FATBIN;
    }
    *size = magic == FATBIN ? fatbin_size(*image) : strlen(*image);
    return *size <= LARGEST_IMAGE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult module_compile(struct card *card, const void *image, unsigned options, const CUjit_option *names,
                        void **values, int *descriptor)
{
    struct jit_options read = {0};
    char log[LOG_ROOM];
    size_t size = sizeof log, length;
    CUresult status = find_image(&image, &length);
    if (status)
        return status;
    read_options(options, names, values, &read);
    *descriptor = -1;
    status = card_call(card, WIRE_COMPILE, image, length, log, &size, descriptor);
    write_log(&read, log, status ? size : 0);
    return status ? status : *descriptor < 0 ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

API cuModuleLoadDataEx(CUmodule *made, const void *image, unsigned count, CUjit_option *options, void **values)
{
    struct context *context;
    int descriptor;
    CUresult status = context_current(&context);
    if (!status)
        status = context_status(context);
    if (!status && !made)
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = module_compile(context->card, image, count, options, values, &descriptor);
    if (status)
        return status;
    struct module *module = module_new(context, descriptor);
    close(descriptor);
    if (!module)
        return CUDA_ERROR_INVALID_IMAGE;
    *made = module->handle;
    return CUDA_SUCCESS;
}

API cuModuleLoadData(CUmodule *made, const void *image)
{
    return cuModuleLoadDataEx(made, image, 0, 0, 0);
}

API cuModuleLoadFatBinary(CUmodule *made, const void *image)
{
    return cuModuleLoadDataEx(made, image, 0, 0, 0);
}

/* Read a file as text or container, followed by zeros; null and the reason if it cannot be read. */
char *read_text(const char *path, CUresult *status)
{
    FILE *file = path ? fopen(path, "rb") : 0;
    *status = file ? CUDA_ERROR_INVALID_IMAGE : path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    if (!file)
        return 0;
    long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    char *text = size > 0 ? calloc(1, (size_t)size + sizeof(struct fatbin)) : 0;
    rewind(file);
    bool whole = text && fread(text, 1, (size_t)size, file) == (size_t)size;
    /* A truncated container would be read beyond its end. */
    if (text && (!whole || (!memcmp(text, &FATBIN, sizeof FATBIN) && fatbin_size(text) > (size_t)size))) {
        free(text);
        text = 0;
    }
    fclose(file);
    if (text)
        *status = CUDA_SUCCESS;
    return text;
}

API cuModuleLoad(CUmodule *made, const char *path)
{
    CUresult status;
    char *text = read_text(path, &status);
    if (!status)
        status = cuModuleLoadData(made, text);
    free(text);
    return status;
}

void module_free(struct module *module)
{
    context_drain(module->context, false);
    handle_drop(HANDLE_MODULE, module->handle);
    for (uint32_t at = 0; at < module->image->kernel_count; at++)
        handle_drop(HANDLE_FUNCTION, module->functions[at].handle);
    for (uint32_t at = 0; at < module->image->global_count; at++)
        memory_forget(module->image->globals[at].address);
    munmap(module->memory, module->size);
    free(module->functions);
    free(module);
}

API cuModuleUnload(CUmodule handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    struct module *module = handle_get(HANDLE_MODULE, handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    module_free(module);
    return CUDA_SUCCESS;
}

static CUresult find_module(CUmodule handle, struct module **module)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    *module = handle_get(HANDLE_MODULE, handle);
    return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult module_find(struct module *module, const char *name, struct function **function)
{
    for (uint32_t at = 0; at < module->image->kernel_count; at++)
        if (!strcmp(module->image->kernels[at].name, name)) {
            *function = &module->functions[at];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

API cuModuleGetFunction(CUfunction *made, CUmodule handle, const char *name)
{
    struct module *module;
    struct function *function;
    CUresult status = find_module(handle, &module);
    if (status)
        return status;
    if (!made || !name)
        return CUDA_ERROR_INVALID_VALUE;
    status = module_find(module, name, &function);
    if (!status)
        *made = function->handle;
    return status;
}

API cuModuleGetFunctionCount(unsigned *count, CUmodule handle)
{
    struct module *module;
    ANSWER(find_module(handle, &module), count, module->image->kernel_count);
}

API cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule handle)
{
    struct module *module;
    CUresult status = find_module(handle, &module);
    if (!status && !functions)
        status = CUDA_ERROR_INVALID_VALUE;
    for (unsigned at = 0; !status && at < count && at < module->image->kernel_count; at++)
        functions[at] = module->functions[at].handle;
    return status;
}

API cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule handle, const char *name)
{
    struct module *module;
    CUresult status = find_module(handle, &module);
    if (status)
        return status;
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t at = 0; at < module->image->global_count; at++) {
        const struct sg_global *global = &module->image->globals[at];
        if (strcmp(global->name, name))
            continue;
        if (pointer)
            *pointer = (CUdeviceptr)(uintptr_t)global->address;
        if (size)
            *size = global->size;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

API cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}
