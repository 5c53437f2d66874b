/* Libraries: modules that belong to no context. Each context that uses a library gets its own copy on first use. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct copy {
    struct copy *next;
    CUcontext context;
    struct module *module;
};

struct library {
    CUlibrary handle;
    pthread_mutex_t lock;
    int descriptor; /* of the compiled code */
    struct copy *copies;
    struct kernel *kernels;
};

struct kernel {
    struct kernel *next;
    struct library *library;
    CUkernel handle;
    char *name;
};

/* The library's module in the current context. */
static CUresult module_here(struct library *library, struct module **module)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    pthread_mutex_lock(&library->lock);
    struct copy *copy = library->copies;
    while (copy && copy->context != context->handle)
        copy = copy->next;
    if (!copy && (copy = calloc(1, sizeof *copy))) {
        copy->context = context->handle;
        copy->module = module_new(context, library->descriptor);
        copy->next = library->copies;
        if (copy->module)
            library->copies = copy;
    }
    *module = copy ? copy->module : 0;
    pthread_mutex_unlock(&library->lock);
    return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult find_library(CUlibrary handle, struct library **library)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    *library = handle_get(HANDLE_LIBRARY, handle);
    return *library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult kernel_find(CUkernel handle, struct function **function)
{
    struct module *module;
    struct kernel *kernel = handle_get(HANDLE_KERNEL, handle);
    if (!kernel)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = module_here(kernel->library, &module);
    return status ? status : module_find(module, kernel->name, function);
}

API cuLibraryLoadData(CUlibrary *made, const void *code, CUjit_option *jit, void **jit_values, unsigned jit_count,
                      CUlibraryOption *options, void **option_values, unsigned option_count)
{
    struct card *card;
    struct context *context;
    int descriptor;
    (void)options;
    (void)option_values;
    (void)option_count;
    CUresult status = sg_card(0, &card);
    if (!status && !made)
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status && !context_current(&context))
        card = context->card;
    if (!status)
        status = module_compile(card, code, jit_count, jit, jit_values, &descriptor);
    if (status)
        return status;
    struct library *library = calloc(1, sizeof *library);
    if (library)
        library->handle = handle_new(HANDLE_LIBRARY, library);
    if (!library || !library->handle) {
        free(library);
        close(descriptor);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_init(&library->lock, 0);
    library->descriptor = descriptor;
    *made = library->handle;
    return CUDA_SUCCESS;
}

API cuLibraryLoadFromFile(CUlibrary *made, const char *path, CUjit_option *jit, void **jit_values, unsigned jit_count,
                          CUlibraryOption *options, void **option_values, unsigned option_count)
{
    CUresult status;
    char *text = read_text(path, &status);
    if (!status)
        status = cuLibraryLoadData(made, text, jit, jit_values, jit_count, options, option_values, option_count);
    free(text);
    return status;
}

API cuLibraryUnload(CUlibrary handle)
{
    struct library *library;
    CUresult status = find_library(handle, &library);
    if (status)
        return status;
    handle_drop(HANDLE_LIBRARY, handle);
    for (struct kernel *kernel = library->kernels, *next; kernel; kernel = next) {
        next = kernel->next;
        handle_drop(HANDLE_KERNEL, kernel->handle);
        free(kernel->name);
        free(kernel);
    }
    for (struct copy *copy = library->copies, *next; copy; copy = next) {
        next = copy->next;
        if (handle_get(HANDLE_CONTEXT, copy->context))
            module_free(copy->module);
        free(copy);
    }
    close(library->descriptor);
    free(library);
    return CUDA_SUCCESS;
}

API cuLibraryGetModule(CUmodule *made, CUlibrary handle)
{
    struct library *library;
    struct module *module;
    CUresult status = find_library(handle, &library);
    if (!status && !made)
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = module_here(library, &module);
    if (!status)
        *made = module->handle;
    return status;
}

/* Repeated calls for one name return the same handle. */
static struct kernel *kernel_of(struct library *library, const char *name)
{
    pthread_mutex_lock(&library->lock);
    struct kernel *kernel = library->kernels;
    while (kernel && strcmp(kernel->name, name))
        kernel = kernel->next;
    if (!kernel && (kernel = calloc(1, sizeof *kernel))) {
        kernel->library = library;
        kernel->name = strdup(name);
        kernel->handle = handle_new(HANDLE_KERNEL, kernel);
        kernel->next = library->kernels;
        library->kernels = kernel;
    }
    pthread_mutex_unlock(&library->lock);
    return kernel;
}

API cuLibraryGetKernel(CUkernel *made, CUlibrary handle, const char *name)
{
    struct library *library;
    struct module *module;
    struct function *function;
    CUresult status = find_library(handle, &library);
    if (!status && (!made || !name))
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = module_here(library, &module);
    if (!status)
        status = module_find(module, name, &function);
    if (status)
        return status;
    struct kernel *kernel = kernel_of(library, name);
    if (!kernel)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = kernel->handle;
    return CUDA_SUCCESS;
}

API cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary handle)
{
    struct library *library;
    struct module *module;
    CUresult status = find_library(handle, &library);
    if (!status && !kernels)
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        status = module_here(library, &module);
    for (unsigned at = 0; !status && at < count && at < module->image->kernel_count; at++)
        status = cuLibraryGetKernel(&kernels[at], handle, module->image->kernels[at].name);
    return status;
}

API cuLibraryGetKernelCount(unsigned *count, CUlibrary handle)
{
    CUmodule module;
    CUresult status = cuLibraryGetModule(&module, handle);
    return status ? status : cuModuleGetFunctionCount(count, module);
}

API cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *size, CUlibrary handle, const char *name)
{
    CUmodule module;
    CUresult status = cuLibraryGetModule(&module, handle);
    return status ? status : cuModuleGetGlobal_v2(pointer, size, module, name);
}

API cuKernelGetFunction(CUfunction *made, CUkernel handle)
{
    struct function *function;
    CUresult status = sg_ready();
    if (!status)
        status = kernel_find(handle, &function);
    if (!status && !made)
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        *made = function->handle;
    return status;
}

API cuKernelGetLibrary(CUlibrary *made, CUkernel handle)
{
    struct kernel *kernel = handle_get(HANDLE_KERNEL, handle);
    if (!kernel || !made)
        return kernel ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *made = kernel->library->handle;
    return CUDA_SUCCESS;
}

API cuKernelGetName(const char **name, CUkernel handle)
{
    struct kernel *kernel = handle_get(HANDLE_KERNEL, handle);
    if (!kernel || !name)
        return kernel ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *name = kernel->name;
    return CUDA_SUCCESS;
}

API cuKernelGetAttribute(int *value, CUfunction_attribute which, CUkernel handle, CUdevice device)
{
    (void)device;
    return cuFuncGetAttribute(value, which, (CUfunction)handle);
}

API cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel handle, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute((CUfunction)handle, which, value);
}

API cuKernelGetParamCount(CUkernel handle, size_t *count)
{
    return cuFuncGetParamCount((CUfunction)handle, count);
}

API cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device)
{
    (void)device;
    return cuFuncSetCacheConfig((CUfunction)handle, config);
}

API cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size)
{
    return cuFuncGetParamInfo((CUfunction)handle, index, offset, size);
}
