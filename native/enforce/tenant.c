/* Finding the tenant's folder, opening its pages and the driver's library behind them.
 *
 * The folder is found from where this library was opened, never from the environment: what a tenant can set must not
 * choose its limits. Whatever is not in order ends in the same place: this process has no device. */
#include "enforce.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Programs that close descriptors by number close low ones. */
enum { HIGH_DESCRIPTOR = 512, FOLDER_ROOM = 1024 };

const struct mg_limits_page *tenant_limits;
struct mg_usage_page *tenant_usage;
int tenant_usage_file = -1;
char tenant_folder[FOLDER_ROOM] = "/run/milligpu/tenant";

void say(const char *format, ...)
{
    char line[512] = "milligpu: ";
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used += wrote < 0 ? 0 : (size_t)wrote;
    if (used > sizeof line - 1)
        used = sizeof line - 1;
    line[used++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, used); /* in one piece: others write there too */
    (void)ignored;
}

/* The folder beside this library, if there is one. */
static void find_folder(void)
{
    Dl_info self;
    char path[FOLDER_ROOM];
    if (!dladdr((void *)&find_folder, &self) || !self.dli_fname)
        return;
    const char *slash = strrchr(self.dli_fname, '/');
    int length = slash ? (int)(slash - self.dli_fname) : 1;
    int wrote = snprintf(path, sizeof path, "%.*s/tenant", length, slash ? self.dli_fname : ".");
    if (wrote > 0 && wrote < (int)sizeof path && !access(path, F_OK))
        memcpy(tenant_folder, path, (size_t)wrote + 1);
}

static int open_in_folder(const char *name, int flags)
{
    char path[FOLDER_ROOM + 64];
    snprintf(path, sizeof path, "%s/%s", tenant_folder, name);
    int file = open(path, flags | O_CLOEXEC);
    if (file < 0)
        return -1;
    int high = fcntl(file, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0)
        return file;
    close(file);
    return high;
}

static void *map_file(int file, size_t size, int protection)
{
    if (file < 0)
        return 0;
    off_t length = lseek(file, 0, SEEK_END);
    if (length != (off_t)size) {
        errno = EINVAL; /* a shorter file would be a fault later, when somebody reads its end */
        return 0;
    }
    void *page = mmap(0, size, protection, MAP_SHARED, file, 0);
    return page == MAP_FAILED ? 0 : page;
}

static const char *open_limits(void)
{
    struct mg_limits_page copy;
    int file = open_in_folder("limits", O_RDONLY);
    const struct mg_limits_page *page = map_file(file, sizeof *page, PROT_READ);
    if (file >= 0)
        close(file);
    if (!page)
        return "the limits page cannot be opened";
    if (mg_limits_read(page, &copy) || !copy.gpu_count)
        return "the limits page is not valid";
    tenant_limits = page;
    return 0;
}

static const char *open_usage(void)
{
    tenant_usage_file = open_in_folder("usage", O_RDWR);
    struct mg_usage_page *page = map_file(tenant_usage_file, sizeof *page, PROT_READ | PROT_WRITE);
    if (!page)
        return "the usage page cannot be opened";
    if (page->magic != MG_USAGE_MAGIC || page->version != MG_PAGES_VERSION || page->slot_count != MG_USAGE_SLOTS)
        return "the usage page is not valid";
    tenant_usage = page;
    return 0;
}

/* The only answer of a driver that is not there. Called with any arguments: it reads none. */
static CUresult no_device(void) { return CUDA_ERROR_NO_DEVICE; }
static CUresult not_supported(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void fill_table(void *driver)
{
    void **table = (void **)&cudaapi_real;
    for (unsigned at = 0; at < CUDAAPI_REAL_COUNT; at++) {
        void *found = driver ? dlsym(driver, cudaapi_real_names[at]) : (void *)&no_device;
        table[at] = found ? found : (void *)&not_supported;
    }
}

static const char *open_driver(void **driver)
{
    char path[FOLDER_ROOM + 64];
    snprintf(path, sizeof path, "%s/real/libcuda.so.1", tenant_folder);
    /* By its full path: the loader then opens it beside us, though both are called libcuda.so.1. */
    *driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return *driver ? 0 : dlerror();
}

static void before_fork(void)
{
    ledger_before_fork();
    virtual_before_fork();
    pools_before_fork();
    account_before_fork();
}

static void in_parent(void)
{
    account_in_parent();
    pools_in_parent();
    virtual_in_parent();
    ledger_in_parent();
}

static void in_child(void)
{
    account_in_child();
    pools_in_child();
    virtual_in_child();
    ledger_in_child();
    contexts_in_child();
    devices_in_child();
}

/* Before anybody can call: the loader runs this when it has loaded the library. */
__attribute__((constructor)) static void tenant_open(void)
{
    void *driver = 0;
    find_folder();
    const char *problem = open_limits();
    if (!problem)
        problem = open_usage();
    if (!problem)
        problem = open_driver(&driver);
    if (problem) {
        tenant_limits = 0;
        say("no GPU for this process: %s (%s)", problem, tenant_folder);
    }
    fill_table(problem ? 0 : driver);
    pthread_atfork(before_fork, in_parent, in_child);
}
