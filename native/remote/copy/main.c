// The program of the image milligpu-client: puts the client libraries where a program's loader finds them.
//
//     /milligpu-client copy DIR
//
// The libraries are in lib/ next to this program. Each is written under another name and renamed when it is complete,
// so a process that starts meanwhile never loads half of one.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *file, *link;
} libraries[] = {{"libcuda.so.1", "libcuda.so"}, {"libnvidia-ml.so.1", "libnvidia-ml.so"}};
static const char *const glibc_loaders[] = {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"};

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *words, ...)
{
    va_list arguments;
    va_start(arguments, words);
    fputs("milligpu-client: ", stderr);
    vfprintf(stderr, words, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

// Writes "DIR/NAME" into a buffer of PATH_MAX bytes.
static void join(char *path, const char *folder, const char *name)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        give_up("%s/%s: the path is too long", folder, name);
}

// In an image of its own this program finds no libc. In a Dockerfile's RUN it finds that of the image being built.
static void refuse_musl(void)
{
    for (size_t at = 0; at < sizeof glibc_loaders / sizeof *glibc_loaders; at++)
        if (!access(glibc_loaders[at], F_OK))
            return;
    DIR *folder = opendir("/lib");
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (!strncmp(entry->d_name, "ld-musl-", strlen("ld-musl-")))
            give_up("this image has musl (/lib/%s), and the client libraries need glibc 2.17 or later: "
                    "use an image based on Debian, Ubuntu, Fedora or UBI",
                    entry->d_name);
    if (folder)
        closedir(folder);
}

// As `mkdir -p`.
static void make_folder(const char *name)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", name) >= PATH_MAX)
        give_up("%s: the path is too long", name);
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        mkdir(path, 0755);
        *at = '/';
    }
    struct stat found;
    if (mkdir(path, 0755) && (stat(path, &found) || !S_ISDIR(found.st_mode)))
        give_up("cannot create the directory %s: %s", name, strerror(errno));
}

static void copy_content(int from, int to, const char *target)
{
    static char bytes[1 << 16];
    ssize_t got;
    while ((got = read(from, bytes, sizeof bytes)) > 0)
        for (ssize_t done = 0, part; done < got; done += part)
            if ((part = write(to, bytes + done, (size_t)(got - done))) < 0)
                give_up("cannot write %s: %s", target, strerror(errno));
    if (got < 0)
        give_up("cannot read what %s is copied from: %s", target, strerror(errno));
}

static void put_in_place(const char *draft, const char *target)
{
    if (rename(draft, target))
        give_up("cannot write %s: %s", target, strerror(errno));
}

static void copy_library(const char *from, const char *folder, const char *name)
{
    char source[PATH_MAX], draft[PATH_MAX], target[PATH_MAX], hidden[NAME_MAX];
    snprintf(hidden, sizeof hidden, ".%s.%ld", name, (long)getpid());
    join(source, from, name);
    join(draft, folder, hidden);
    join(target, folder, name);
    int in = open(source, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        give_up("cannot open %s: %s", source, strerror(errno));
    unlink(draft);
    int out = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    if (out < 0)
        give_up("cannot write %s: %s", draft, strerror(errno));
    fchmod(out, 0755); // whatever the umask is: the program may run as another user
    copy_content(in, out, target);
    if (close(out))
        give_up("cannot write %s: %s", target, strerror(errno));
    close(in);
    put_in_place(draft, target);
}

static void link_library(const char *folder, const char *name, const char *link)
{
    char draft[PATH_MAX], target[PATH_MAX], hidden[NAME_MAX];
    snprintf(hidden, sizeof hidden, ".%s.%ld", link, (long)getpid());
    join(draft, folder, hidden);
    join(target, folder, link);
    unlink(draft);
    if (symlink(name, draft))
        give_up("cannot write %s: %s", target, strerror(errno));
    put_in_place(draft, target);
}

// The directory with the libraries, from the path by which this program was started; /proc need not be there.
static void find_libraries(char *path)
{
    const char *program = (const char *)getauxval(AT_EXECFN);
    const char *end = program ? strrchr(program, '/') : NULL;
    if (snprintf(path, PATH_MAX, "%.*s/lib", end ? (int)(end - program) : 1, end ? program : ".") >= PATH_MAX)
        give_up("%s: the path is too long", program);
}

int main(int count, char **words)
{
    if (count != 3 || strcmp(words[1], "copy") || !*words[2]) {
        fputs("usage: milligpu-client copy DIR\n\n"
              "Copy libcuda.so.1 and libnvidia-ml.so.1 for GPUs over the network into DIR.\n",
              stderr);
        return 2;
    }
    char from[PATH_MAX];
    find_libraries(from);
    refuse_musl();
    make_folder(words[2]);
    for (size_t at = 0; at < sizeof libraries / sizeof *libraries; at++) {
        copy_library(from, words[2], libraries[at].file);
        link_library(words[2], libraries[at].file, libraries[at].link);
    }
    printf("milligpu's client libraries are in %s\n", words[2]);
    return 0;
}
