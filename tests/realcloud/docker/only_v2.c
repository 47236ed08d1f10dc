/* Preloaded into slurmd: a process seems to be in cgroup v2 alone, though its host has v1 hierarchies,
   too, which Slurm's cgroup/v2 refuses ("Hybrid mode is not supported"). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int (*opener)(const char *, int, ...);

static int asked(const char *path) {
    size_t length = strlen(path);
    return length > 13 && !strncmp(path, "/proc/", 6) && !strcmp(path + length - 7, "/cgroup");
}

static int v2_line(const char *path) {
    char text[8192];
    int real = ((opener)dlsym(RTLD_NEXT, "open"))(path, O_RDONLY | O_CLOEXEC);
    if (real < 0)
        return real;
    ssize_t length = read(real, text, sizeof text - 1);
    close(real);
    text[length < 0 ? 0 : length] = 0;
    int said = memfd_create("cgroup", MFD_CLOEXEC);
    char *line = strstr(text, "0::");
    if (line && write(said, line, strcspn(line, "\n") + 1) < 0)
        return -1;
    lseek(said, 0, SEEK_SET);
    return said;
}

#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...) {                         \
        va_list more;                                                    \
        va_start(more, flags);                                           \
        int mode = va_arg(more, int);                                    \
        va_end(more);                                                    \
        if (asked(path))                                                 \
            return v2_line(path);                                        \
        return ((opener)dlsym(RTLD_NEXT, #name))(path, flags, mode);     \
    }
OPEN(open)
OPEN(open64)

FILE *fopen(const char *path, const char *mode) {
    if (asked(path))
        return fdopen(v2_line(path), "r");
    return ((FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen"))(path, mode);
}

FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }
