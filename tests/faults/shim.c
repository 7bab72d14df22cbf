/* Counts the system calls that change files below one folder and, at a chosen one, kills the process or lets it fail.
 *
 * LD_PRELOADed; a process arms it with arm(). Calls are counted from 1 in *counter, which may be shared memory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, KILL_BEFORE, KILL_AFTER, TEAR, FAIL_ONCE, FAIL_FROM };

static char folder[4096];
static size_t folder_length;
static long *counter;
static long target;
static int mode, fault_errno;
static int log_descriptor = -1;

void arm(const char *below, long *calls, int how, long at, int error, int log) {
    strncpy(folder, below, sizeof folder - 1);
    folder_length = strlen(folder);
    counter = calls;
    mode = how;
    target = at;
    fault_errno = error;
    log_descriptor = log;
}

static int inside(const char *path) {
    char absolute[8192];
    if (!folder_length || !path) return 0;
    if (path[0] != '/') {
        if (!getcwd(absolute, 4096)) return 0;
        strcat(absolute, "/");
        strncat(absolute, path, 4000);
        path = absolute;
    }
    return !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

static int descriptor_inside(int descriptor, char *name) {
    char link[64];
    if (!folder_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, name, 4095);
    if (length <= 0) return 0;
    name[length] = 0;
    return inside(name);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static ssize_t (*real_write)(int, const void *, size_t);

/* Return 1 when the call is to fail, 2 when it is to be the last one and torn. */
static int fault(const char *what, const char *name, int *last) {
    long number = __sync_add_and_fetch(counter, 1);
    *last = 0;
    if (log_descriptor >= 0) {
        char line[5000];
        int length = snprintf(line, sizeof line, "%ld %s %s\n", number, what, name);
        if (!real_write) real_write = dlsym(RTLD_NEXT, "write");
        if (real_write(log_descriptor, line, length) < 0) return 0;
    }
    if (mode == FAIL_FROM && number >= target) return 1;
    if (number != target) return 0;
    if (mode == KILL_BEFORE) die();
    if (mode == KILL_AFTER) *last = 1;
    if (mode == FAIL_ONCE) return 1;
    return mode == TEAR ? 2 : 0;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, #name)
#define WRAP(what, is_watched, shown, call) \
    int last = 0; \
    if (is_watched) { \
        int kind = fault(what, shown, &last); \
        if (kind == 1) { errno = fault_errno; return -1; } \
        if (kind == 2) die(); \
    } \
    ssize_t result = call; \
    if (last) die(); \
    return result

ssize_t write(int descriptor, const void *bytes, size_t count) {
    char name[4096];
    if (!real_write) real_write = dlsym(RTLD_NEXT, "write");
    int last = 0;
    if (descriptor_inside(descriptor, name)) {
        int kind = fault("write", name, &last);
        if (kind == 1 && mode == FAIL_FROM && *counter == target && count > 1)  /* what still fits on a full disk */
            return real_write(descriptor, bytes, count / 2);
        if (kind == 1) { errno = fault_errno; return -1; }
        if (kind == 2) { if (real_write(descriptor, bytes, (count + 1) / 2) >= 0) die(); }
    }
    ssize_t result = real_write(descriptor, bytes, count);
    if (last) die();
    return result;
}

ssize_t sendfile64(int out, int in, off_t *offset, size_t count) {
    char name[4096];
    REAL(ssize_t, sendfile64, int, int, off_t *, size_t);
    WRAP("sendfile", descriptor_inside(out, name), name, real(out, in, offset, count));
}
ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t count, unsigned flags) {
    char name[4096];
    REAL(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned);
    WRAP("copy_file_range", descriptor_inside(out, name), name, real(in, from, out, to, count, flags));
}
int fsync(int descriptor) {
    char name[4096];
    REAL(int, fsync, int);
    WRAP("fsync", descriptor_inside(descriptor, name), name, real(descriptor));
}
int fdatasync(int descriptor) {
    char name[4096];
    REAL(int, fdatasync, int);
    WRAP("fdatasync", descriptor_inside(descriptor, name), name, real(descriptor));
}
int ftruncate64(int descriptor, off_t size) {
    char name[4096];
    REAL(int, ftruncate64, int, off_t);
    WRAP("ftruncate", descriptor_inside(descriptor, name), name, real(descriptor, size));
}
int truncate64(const char *path, off_t size) {
    REAL(int, truncate64, const char *, off_t);
    WRAP("truncate", inside(path), path, real(path, size));
}
int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    WRAP("rename", inside(to), to, real(from, to));
}
int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    WRAP("link", inside(to), to, real(from, to));
}
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    WRAP("link", inside(to), to, real(from_folder, from, to_folder, to, flags));
}
int unlink(const char *path) {
    REAL(int, unlink, const char *);
    WRAP("unlink", inside(path), path, real(path));
}
int chmod(const char *path, mode_t bits) {
    REAL(int, chmod, const char *, mode_t);
    WRAP("chmod", inside(path), path, real(path, bits));
}
int fchmod(int descriptor, mode_t bits) {
    char name[4096];
    REAL(int, fchmod, int, mode_t);
    WRAP("fchmod", descriptor_inside(descriptor, name), name, real(descriptor, bits));
}
int mkdir(const char *path, mode_t bits) {
    REAL(int, mkdir, const char *, mode_t);
    WRAP("mkdir", inside(path), path, real(path, bits));
}

#define WRITES(flags) ((flags) & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR))
#define OPEN(name) \
int name(const char *path, int flags, ...) { \
    mode_t bits = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); } \
    REAL(int, name, const char *, int, ...); \
    WRAP("open", WRITES(flags) && inside(path), path, real(path, flags, bits)); \
}
OPEN(open)
OPEN(open64)
#define OPENAT(name) \
int name(int at, const char *path, int flags, ...) { \
    mode_t bits = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); } \
    REAL(int, name, int, const char *, int, ...); \
    WRAP("open", WRITES(flags) && inside(path), path, real(at, path, flags, bits)); \
}
OPENAT(openat)
OPENAT(openat64)
