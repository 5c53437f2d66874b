/* Devices, contexts, streams, events, modules, launches and graphs of the strict driver. */
#include "objects.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int device_count;
static CUuuid device_uuids[DEVICES];
static struct object *primaries[DEVICES];
PUBLIC uint64_t strict_launches; /* of kernels and graphs that run, for tests */

CUresult cudaapi_missing(const char *symbol)
{
    (void)symbol;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int version(void)
{
    const char *set = getenv("STRICT_VERSION");
    return set ? atoi(set) : CUDA_VERSION;
}

/* Append a line to the file STRICT_TRACE: what programs ask about the driver itself. */
static void trace(const char *what, const char *name, int release, uint64_t flags)
{
    const char *path = getenv("STRICT_TRACE");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s %s %d %llu\n", what, name, release, (unsigned long long)flags);
    fclose(file);
}

/* STRICT_UUIDS lists the machine's cards; CUDA_VISIBLE_DEVICES, by UUID, selects among them. */
static void read_devices(void)
{
    char list[DEVICES * 64] = "";
    const char *all = getenv("STRICT_UUIDS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(list, sizeof list, "%s", visible ? visible : all ? all : "");
    device_count = 0;
    for (char *rest = list, *word; (word = strsep(&rest, ",")) && device_count < DEVICES;) {
        unsigned byte = 0;
        if (!all || !*word || !strstr(all, word))
            continue;
        for (const char *at = word + strlen("GPU-"); *at && byte < 16; at += *at == '-' ? 1 : 2)
            if (*at != '-') {
                char hex[3] = {at[0], at[1], 0};
                device_uuids[device_count].bytes[byte++] = (char)strtol(hex, NULL, 16);
            }
        device_count++;
    }
}

API cuInit(unsigned flags)
{
    ENTER;
    (void)flags;
    if (!device_count)
        read_devices();
    return device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

API cuDriverGetVersion(int *found)
{
    *found = version();
    return CUDA_SUCCESS;
}

/* What a later release adds: a function, and a new variant of an old one. */
static CUresult future(void)
{
    return CUDA_SUCCESS;
}

API cuGetProcAddress_v2(const char *name, void **function, int release, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *result)
{
    trace("function", name, release, flags);
    int known = 0, ahead = version() > CUDA_VERSION && release > CUDA_VERSION;
    const struct cudaapi_proc *row = cudaapi_find(name, release < version() ? release : version(), flags, &known);
    *function = row ? (void *)row->function : NULL;
    if (ahead && (!strcmp(name, "cuCtxCreate") || !strcmp(name, "cuFutureAlloc")))
        *function = (void *)&future;
    if (result)
        *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function || result ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **function, int release, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, release, flags, NULL);
}

/* The tables are the vendor's own; nothing here stands in for them. */
API cuGetExportTable(const void **table, const CUuuid *id)
{
    char text[2 * sizeof id->bytes + 1];
    for (size_t at = 0; at < sizeof id->bytes; at++)
        snprintf(text + 2 * at, 3, "%02x", (unsigned char)id->bytes[at]);
    trace("table", text, 0, 0);
    *table = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API cuGetErrorString(CUresult error, const char **text)
{
    return cudaapi_error_string(error, text);
}

/* ---- devices ---- */

API cuDeviceGetCount(int *count)
{
    ENTER;
    *count = device_count;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int at)
{
    ENTER;
    *device = at;
    return at >= 0 && at < device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    ENTER;
    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *uuid = device_uuids[device];
    return CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    ENTER;
    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 8
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
                                                                     : 1;
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */

static struct object *new_context(int device)
{
    struct object *made = strict_new(CONTEXT, NULL);
    made->device = device;
    made->users = 1;
    made->legacy = strict_new(STREAM, made);
    made->legacy->is_default = true;
    return made;
}

static void end_context(struct object *context)
{
    for (int device = 0; device < device_count; device++)
        if (primaries[device] == context)
            primaries[device] = NULL;
    strict_destroy(context);
}

API cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device)
{
    ENTER;
    (void)flags;
    strict_unsafe(entered);
    if (device < 0 || device >= device_count || strict_depth == NESTED)
        return CUDA_ERROR_INVALID_DEVICE;
    strict_stack[strict_depth++] = new_context(device);
    *made = (CUcontext)strict_stack[strict_depth - 1];
    return CUDA_SUCCESS;
}

API cuCtxDestroy_v2(CUcontext context)
{
    ENTER;
    strict_unsafe(entered);
    struct object *ended = strict_object(entered, context, CONTEXT);
    if (strict_depth && strict_stack[strict_depth - 1] == ended)
        strict_depth--;
    end_context(ended);
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context)
{
    ENTER;
    *context = strict_depth ? (CUcontext)strict_stack[strict_depth - 1] : NULL;
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context)
{
    ENTER;
    if (context)
        strict_object(entered, context, CONTEXT);
    if (!strict_depth)
        strict_depth = 1;
    strict_stack[strict_depth - 1] = (struct object *)context;
    if (!context)
        strict_depth--;
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER;
    if (strict_depth == NESTED)
        return CUDA_ERROR_INVALID_VALUE;
    strict_stack[strict_depth++] = strict_object(entered, context, CONTEXT);
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER;
    if (!strict_depth)
        strict_forbid(entered, "no current context");
    strict_depth--;
    if (context)
        *context = (CUcontext)strict_stack[strict_depth];
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device)
{
    ENTER;
    if (!strict_depth || !strict_stack[strict_depth - 1])
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = strict_current(entered)->device;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize(void)
{
    ENTER;
    strict_unsafe(entered);
    struct object *context = strict_current(entered);
    int64_t end = 0;
    for (struct object *each = NULL; (each = strict_each(each, STREAM));)
        if (each->context == context && each->at > end)
            end = each->at;
    strict_wait(end);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
    ENTER;
    strict_unsafe(entered);
    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    if (primaries[device])
        primaries[device]->users++;
    else
        primaries[device] = new_context(device);
    *made = (CUcontext)primaries[device];
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER;
    if (device < 0 || device >= device_count || !primaries[device])
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!--primaries[device]->users)
        end_context(primaries[device]);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER;
    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    if (primaries[device])
        end_context(primaries[device]);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER;
    *flags = 0;
    *active = device >= 0 && device < device_count && primaries[device];
    return CUDA_SUCCESS;
}

/* ---- streams ---- */

static CUresult create_stream(const char *call, CUstream *made, unsigned flags)
{
    struct object *stream = strict_new(STREAM, strict_current(call));
    stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    *made = (CUstream)stream;
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *made, unsigned flags)
{
    ENTER;
    return create_stream(entered, made, flags);
}

API cuStreamCreateWithPriority(CUstream *made, unsigned flags, int priority)
{
    ENTER;
    (void)priority;
    return create_stream(entered, made, flags);
}

static CUresult destroy_stream(const char *call, CUstream stream)
{
    struct object *ended = strict_object(call, stream, STREAM);
    if (ended->is_default)
        strict_forbid(call, "a default stream cannot be destroyed");
    strict_destroy(ended);
    return CUDA_SUCCESS;
}

API cuStreamDestroy_v2(CUstream stream)
{
    ENTER;
    return destroy_stream(entered, stream);
}

API cuStreamDestroy(CUstream stream)
{
    ENTER;
    return destroy_stream(entered, stream);
}

API cuStreamSynchronize(CUstream stream)
{
    ENTER;
    strict_unsafe(entered);
    struct object *of = strict_stream(entered, stream);
    if (strict_is_capturing(of))
        strict_forbid(entered, "the stream is captured");
    strict_wait(strict_stream_end(of));
    return CUDA_SUCCESS;
}

API cuStreamQuery(CUstream stream)
{
    ENTER;
    strict_unsafe(entered);
    return strict_stream_end(strict_stream(entered, stream)) <= strict_now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER;
    *context = (CUcontext)strict_stream(entered, stream)->context;
    return CUDA_SUCCESS;
}

API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    ENTER;
    struct object *of = strict_stream(entered, stream);
    *status = strict_is_capturing(of) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    ENTER;
    (void)flags;
    struct object *of = strict_stream(entered, stream), *what = strict_object(entered, event, EVENT);
    if (what->captured && what->capture && what->capture->alive) {
        of->capture = what->capture; /* it joins the capture */
        return CUDA_SUCCESS;
    }
    if (what->recorded && what->at > of->at)
        of->at = what->at;
    return CUDA_SUCCESS;
}

/* ---- captures ---- */

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER;
    CUstreamCaptureMode before = strict_mode;
    strict_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    ENTER;
    struct object *of = strict_stream(entered, stream);
    if (of == of->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (strict_is_capturing(of))
        return CUDA_ERROR_ILLEGAL_STATE;
    of->capture = strict_new(CAPTURE, of->context);
    of->capture->thread = pthread_self();
    of->capture->mode = mode;
    of->capture->link = of;
    of->capture->graph = strict_new(GRAPH, NULL);
    return CUDA_SUCCESS;
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ENTER;
    struct object *of = strict_stream(entered, stream);
    if (!strict_is_capturing(of) || of->capture->link != of)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (of->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(of->capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    *graph = (CUgraph)of->capture->graph;
    strict_destroy(of->capture);
    return CUDA_SUCCESS;
}

/* ---- events ---- */

/* STRICT_NO_EVENTS: a driver that is out of what events need. */
API cuEventCreate(CUevent *made, unsigned flags)
{
    ENTER;
    (void)flags;
    if (getenv("STRICT_NO_EVENTS"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (CUevent)strict_new(EVENT, strict_current(entered));
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent event)
{
    ENTER;
    strict_destroy(strict_object(entered, event, EVENT));
    return CUDA_SUCCESS;
}

API cuEventRecord(CUevent event, CUstream stream)
{
    ENTER;
    struct object *what = strict_object(entered, event, EVENT), *of = strict_stream(entered, stream);
    if (what->context != of->context)
        strict_forbid(entered, "event and stream are of different contexts");
    what->captured = strict_is_capturing(of);
    what->capture = of->capture;
    if (!what->captured)
        what->at = strict_add_work(entered, of, 0);
    what->recorded = true;
    return CUDA_SUCCESS;
}

static struct object *finished_part(const char *call, CUevent event)
{
    strict_unsafe(call);
    struct object *what = strict_object(call, event, EVENT);
    if (what->captured)
        strict_forbid(call, "the event was recorded into a capture");
    return what;
}

API cuEventQuery(CUevent event)
{
    ENTER;
    const struct object *what = finished_part(entered, event);
    return !what->recorded || what->at <= strict_now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(CUevent event)
{
    ENTER;
    const struct object *what = finished_part(entered, event);
    if (what->recorded)
        strict_wait(what->at);
    return CUDA_SUCCESS;
}

API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER;
    const struct object *first = finished_part(entered, start), *last = finished_part(entered, end);
    if (first->context != last->context)
        strict_forbid(entered, "the events are of different contexts");
    if (!first->recorded || !last->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    if (first->at > strict_now() || last->at > strict_now())
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(last->at - first->at) / 1e6F;
    return CUDA_SUCCESS;
}

/* ---- modules: a function's name says how long it takes: "us5" takes 5 us, "forever" does not end ---- */

API cuModuleLoadData(CUmodule *made, const void *image)
{
    ENTER;
    (void)image;
    strict_unsafe(entered);
    *made = (CUmodule)strict_new(MODULE, strict_current(entered));
    return CUDA_SUCCESS;
}

API cuModuleUnload(CUmodule module)
{
    ENTER;
    strict_unsafe(entered);
    struct object *ended = strict_object(entered, module, MODULE);
    for (struct object *each = NULL; (each = strict_each(each, FUNCTION));)
        if (each->link == ended)
            strict_destroy(each);
    strict_destroy(ended);
    return CUDA_SUCCESS;
}

static struct object *new_function(struct object *of, const char *name)
{
    struct object *function = strict_new(FUNCTION, of->context);
    function->link = of;
    function->at = !strncmp(name, "us", 2) ? atol(name + 2) * 1000 : FOREVER;
    return function;
}

API cuModuleGetFunction(CUfunction *made, CUmodule module, const char *name)
{
    ENTER;
    *made = (CUfunction)new_function(strict_object(entered, module, MODULE), name);
    return CUDA_SUCCESS;
}

/* ---- libraries: independent of contexts, and loaded into a context with the first launch there ---- */

API cuLibraryLoadData(CUlibrary *made, const void *code, CUjit_option *options, void **values, unsigned count,
                      CUlibraryOption *library_options, void **library_values, unsigned library_count)
{
    ENTER;
    (void)code, (void)options, (void)values, (void)count, (void)library_options, (void)library_values;
    (void)library_count;
    *made = (CUlibrary)strict_new(LIBRARY, NULL);
    return CUDA_SUCCESS;
}

API cuLibraryGetKernel(CUkernel *made, CUlibrary library, const char *name)
{
    ENTER;
    *made = (CUkernel)new_function(strict_object(entered, library, LIBRARY), name);
    return CUDA_SUCCESS;
}

API cuLibraryUnload(CUlibrary library)
{
    ENTER;
    strict_unsafe(entered);
    struct object *ended = strict_object(entered, library, LIBRARY);
    for (struct object *each = NULL; (each = strict_each(each, FUNCTION));)
        if (each->link == ended)
            strict_destroy(each);
    strict_destroy(ended);
    return CUDA_SUCCESS;
}

/* ---- launches and graphs ---- */

static CUresult launch(const char *call, CUfunction function, CUstream stream)
{
    struct object *what = strict_object(call, function, FUNCTION), *of = strict_stream(call, stream);
    if (what->context && what->context != of->context)
        strict_forbid(call, "function and stream are of different contexts");
    strict_current(call);
    strict_launches += !strict_is_capturing(of);
    strict_add_work(call, of, what->at);
    return CUDA_SUCCESS;
}

API cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, CUstream stream, void **values, void **extra)
{
    ENTER;
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)values, (void)extra;
    return launch(entered, function, stream);
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
{
    ENTER;
    (void)values, (void)extra;
    return launch(entered, function, config->hStream);
}

API cuGraphCreate(CUgraph *made, unsigned flags)
{
    ENTER;
    (void)flags;
    *made = (CUgraph)strict_new(GRAPH, NULL);
    return CUDA_SUCCESS;
}

API cuGraphDestroy(CUgraph graph)
{
    ENTER;
    strict_destroy(strict_object(entered, graph, GRAPH));
    return CUDA_SUCCESS;
}

API cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
    ENTER;
    (void)flags;
    struct object *of = strict_object(entered, graph, GRAPH), *exec = strict_new(EXEC, strict_current(entered));
    exec->at = of->at;
    *made = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

API cuGraphExecDestroy(CUgraphExec exec)
{
    ENTER;
    strict_destroy(strict_object(entered, exec, EXEC));
    return CUDA_SUCCESS;
}

API cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    ENTER;
    struct object *what = strict_object(entered, exec, EXEC), *of = strict_stream(entered, stream);
    strict_launches += !strict_is_capturing(of);
    strict_add_work(entered, of, what->at);
    return CUDA_SUCCESS;
}
