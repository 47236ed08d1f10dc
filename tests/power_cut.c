/* Loaded into a program (LD_PRELOAD), keeps what it puts on the disk: each fsync or fdatasync of a file
   copies its content to $POWER_CUT_DISK/<inode>, of a directory its names and their inodes. What was
   written since the last one is all that is copied then, where this program wrote it.

   disk_fails(error, after) has writes to the disk of $POWER_CUT_ROOT fail from then on, once so many more
   have succeeded: with ENOSPC those that need room, with EROFS all changes, with another error all writes;
   with 0 nothing fails. Room that is asked for there is not taken.

   directory_goes(path, error) has all that names something in that directory, or writes to a file there, fail
   with the error, as a file server's does that is away, whichever link leads there; with 0 it is back. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLOTS 4096

/* Of a file whose copy is complete but for what was written since between low and high. */
static struct since {
    ino_t inode;
    off_t low, high;
} written[SLOTS];
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int failure;
static long succeed;

void disk_fails(int error, long after)
{
    failure = error;
    succeed = after;
}

/* Whether this change fails; errno says how. */
static int fails(int counts)
{
    if (!counts || failure == 0 || succeed-- > 0)
        return 0;
    succeed = 0;
    errno = failure;
    return 1;
}

static char gone_path[PATH_MAX];
static int gone;

void directory_goes(const char *path, int error)
{
    snprintf(gone_path, sizeof gone_path, "%s", path);
    gone = error;
}

static int is_in_gone(const char *path)
{
    size_t size = strlen(gone_path);
    return strncmp(path, gone_path, size) == 0 && (path[size] == 0 || path[size] == '/');
}

/* Whether the path, or for those that follow links what it leads to, is away; errno says how. */
static int is_away(const char *path, int follows)
{
    char real[PATH_MAX], part[PATH_MAX];
    int kept = errno;
    if (gone == 0)
        return 0;
    int there = is_in_gone(path) || (follows && realpath(path, real) != NULL && is_in_gone(real));
    snprintf(part, sizeof part, "%s", path);
    char *slash = strrchr(part, '/');
    if (!there && slash != NULL && slash != part) {
        *slash = 0;
        there = realpath(part, real) != NULL && is_in_gone(real);
    }
    errno = there ? gone : kept;
    return there;
}

static int is_away_file(int descriptor)
{
    char self[64], path[PATH_MAX];
    if (gone == 0)
        return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", descriptor);
    ssize_t size = syscall(SYS_readlink, self, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    if (!is_in_gone(path))
        return 0;
    errno = gone;
    return 1;
}

static int is_ours(int descriptor, struct stat *what)
{
    static const char *known;
    static dev_t device;
    const char *root = getenv("POWER_CUT_ROOT");
    struct stat of_root;
    if (root == NULL || fstat(descriptor, what) != 0 || !S_ISREG(what->st_mode))
        return 0;
    if (known != root && stat(root, &of_root) == 0) {
        known = root;
        device = of_root.st_dev;
    }
    return what->st_dev == device;
}

static int is_below(const char *path)
{
    const char *root = getenv("POWER_CUT_ROOT");
    return failure != 0 && root != NULL && strncmp(path, root, strlen(root)) == 0;
}

static int write_fails(int descriptor, off_t end)
{
    struct stat what;
    if (failure == 0 || !is_ours(descriptor, &what))
        return 0;
    return fails(failure != ENOSPC || end > what.st_size);
}

static struct since *slot_of(ino_t inode)
{
    for (int n = 0; n < 16; n++) {
        struct since *one = &written[(inode + (ino_t) n) % SLOTS];
        if (one->inode == inode)
            return one;
    }
    return NULL;
}

static struct since *new_slot(ino_t inode)
{
    for (int n = 0; n < 16; n++) {
        struct since *one = &written[(inode + (ino_t) n) % SLOTS];
        if (one->inode == 0) {
            one->inode = inode;
            return one;
        }
    }
    memset(written, 0, sizeof written); /* whoever is forgotten is copied whole */
    written[inode % SLOTS].inode = inode;
    return &written[inode % SLOTS];
}

static void note(int descriptor, off_t from, off_t to)
{
    struct stat what;
    if (getenv("POWER_CUT_DISK") == NULL || fstat(descriptor, &what) != 0 || !S_ISREG(what.st_mode))
        return;
    pthread_mutex_lock(&turn);
    struct since *one = slot_of(what.st_ino);
    if (one != NULL) {
        one->low = from < one->low ? from : one->low;
        one->high = to > one->high ? to : one->high;
    }
    pthread_mutex_unlock(&turn);
}

static void copy(int from, int to, off_t at, off_t end)
{
    char part[65536];
    while (at < end) {
        size_t size = end - at < (off_t) sizeof part ? (size_t) (end - at) : sizeof part;
        ssize_t count = pread(from, part, size, at);
        if (count <= 0)
            break;
        if (syscall(SYS_pwrite64, to, part, (size_t) count, at) != count)
            abort();
        at += count;
    }
}

static void put_names(const char *place, int from)
{
    char draft[4200], self[64];
    snprintf(draft, sizeof draft, "%s.%ld", place, (long) syscall(SYS_gettid));
    snprintf(self, sizeof self, "/proc/self/fd/%d", from);
    int to = (int) syscall(SYS_openat, AT_FDCWD, draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    DIR *names = opendir(self);
    if (to < 0 || names == NULL)
        abort();
    for (struct dirent *one; (one = readdir(names)) != NULL;) {
        char entry[300];
        int size = snprintf(entry, sizeof entry, "%lu/%s", (unsigned long) one->d_ino, one->d_name) + 1;
        if (syscall(SYS_write, to, entry, (size_t) size) != size)
            abort();
    }
    closedir(names);
    if (close(to) != 0 || syscall(SYS_renameat2, AT_FDCWD, draft, AT_FDCWD, place, 0) != 0)
        abort();
}

static void put_content(const char *place, int from, const struct stat *what)
{
    /* The descriptor itself where it can be read: to close another one of the same file would drop
       sqlite's locks. */
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", from);
    int can = (fcntl(from, F_GETFL) & O_ACCMODE) != O_WRONLY;
    int content = can ? from : open(self, O_RDONLY | O_CLOEXEC);
    struct since *one = slot_of(what->st_ino);
    int known = one != NULL && access(place, F_OK) == 0;
    int to = (int) syscall(SYS_openat, AT_FDCWD, place, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (to < 0 || content < 0)
        abort();
    copy(content, to, known ? one->low : 0, known && one->high < what->st_size ? one->high : what->st_size);
    if (syscall(SYS_ftruncate, to, what->st_size) != 0 || close(to) != 0)
        abort();
    one = one != NULL ? one : new_slot(what->st_ino);
    one->low = what->st_size > (off_t) 1 << 60 ? what->st_size : (off_t) 1 << 60;
    one->high = 0;
    if (!can)
        close(content);
}

static int sync_and_put(int number, int descriptor)
{
    if (is_away_file(descriptor))
        return -1;
    const char *disk = getenv("POWER_CUT_DISK");
    int kept = errno;
    struct stat what;
    if (disk != NULL && fstat(descriptor, &what) == 0) {
        char place[4096];
        snprintf(place, sizeof place, "%s/%lu", disk, (unsigned long) what.st_ino);
        pthread_mutex_lock(&turn);
        if (S_ISDIR(what.st_mode))
            put_names(place, descriptor);
        else
            put_content(place, descriptor, &what);
        pthread_mutex_unlock(&turn);
    }
    errno = kept;
    return (int) syscall(number, descriptor);
}

int fsync(int descriptor)
{
    return sync_and_put(SYS_fsync, descriptor);
}

int fdatasync(int descriptor)
{
    return sync_and_put(SYS_fdatasync, descriptor);
}

static ssize_t write_at(int descriptor, const void *what, size_t size, off_t at)
{
    if (is_away_file(descriptor) || write_fails(descriptor, at + (off_t) size))
        return -1;
    ssize_t count = syscall(SYS_pwrite64, descriptor, what, size, at);
    if (count > 0)
        note(descriptor, at, at + count);
    return count;
}

ssize_t pwrite(int descriptor, const void *what, size_t size, off_t at)
{
    return write_at(descriptor, what, size, at);
}

ssize_t pwrite64(int descriptor, const void *what, size_t size, off_t at)
{
    return write_at(descriptor, what, size, at);
}

ssize_t write(int descriptor, const void *what, size_t size)
{
    struct stat file;
    if (is_away_file(descriptor))
        return -1;
    if (failure != 0 && is_ours(descriptor, &file) && write_fails(descriptor, file.st_size + (off_t) size))
        return -1;
    ssize_t count = syscall(SYS_write, descriptor, what, size);
    if (count > 0) {
        off_t end = lseek(descriptor, 0, SEEK_CUR);
        if (end >= count)
            note(descriptor, end - count, end);
    }
    return count;
}

static int cut(int descriptor, off_t size)
{
    if (is_away_file(descriptor) || write_fails(descriptor, size))
        return -1;
    int done = (int) syscall(SYS_ftruncate, descriptor, size);
    if (done == 0)
        note(descriptor, size, size);
    return done;
}

int ftruncate(int descriptor, off_t size)
{
    return cut(descriptor, size);
}

int ftruncate64(int descriptor, off_t size)
{
    return cut(descriptor, size);
}

int posix_fallocate(int descriptor, off_t at, off_t size)
{
    struct stat file;
    if (is_ours(descriptor, &file)) /* no room is taken: it is asked for again and again */
        return write_fails(descriptor, at + size) ? failure : 0;
    int (*real)(int, off_t, off_t) = (int (*)(int, off_t, off_t)) dlsym(RTLD_NEXT, "posix_fallocate");
    return real(descriptor, at, size);
}

int posix_fallocate64(int descriptor, off_t at, off_t size)
{
    return posix_fallocate(descriptor, at, size);
}

static int open_unless(const char *path, int flags, mode_t mode)
{
    int changes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
    if (is_away(path, 1) || (failure == EROFS && changes && is_below(path) && fails(1)))
        return -1;
    return (int) syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static mode_t mode_of(int flags, va_list rest)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_unless(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return open_unless(path, flags | O_LARGEFILE, mode);
}

int rename(const char *from, const char *to)
{
    if (is_away(from, 0) || is_away(to, 0) || (failure == EROFS && is_below(to) && fails(1)))
        return -1;
    return (int) syscall(SYS_rename, from, to);
}

int unlink(const char *path)
{
    if (is_away(path, 0) || (failure == EROFS && is_below(path) && fails(1)))
        return -1;
    return (int) syscall(SYS_unlink, path);
}

int link(const char *from, const char *to)
{
    return is_away(from, 0) || is_away(to, 0) ? -1 : (int) syscall(SYS_link, from, to);
}

int mkdir(const char *path, mode_t mode)
{
    return is_away(path, 0) ? -1 : (int) syscall(SYS_mkdir, path, mode);
}

int stat(const char *restrict path, struct stat *restrict what)
{
    return is_away(path, 1) ? -1 : fstatat(AT_FDCWD, path, what, 0);
}

int stat64(const char *restrict path, struct stat64 *restrict what)
{
    return is_away(path, 1) ? -1 : fstatat64(AT_FDCWD, path, what, 0);
}

int lstat(const char *restrict path, struct stat *restrict what)
{
    return is_away(path, 0) ? -1 : fstatat(AT_FDCWD, path, what, AT_SYMLINK_NOFOLLOW);
}

int lstat64(const char *restrict path, struct stat64 *restrict what)
{
    return is_away(path, 0) ? -1 : fstatat64(AT_FDCWD, path, what, AT_SYMLINK_NOFOLLOW);
}

DIR *opendir(const char *path)
{
    DIR *(*real)(const char *) = (DIR *(*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    return is_away(path, 1) ? NULL : real(path);
}
