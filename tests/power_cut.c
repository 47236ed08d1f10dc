/* Loaded into a program (LD_PRELOAD), keeps what it puts on the disk: each fsync or fdatasync of a file
   copies its content to $POWER_CUT_DISK/<inode>, of a directory its names and their inodes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *disk, int from, const struct stat *what)
{
    char place[4096], draft[4200], self[64];
    snprintf(place, sizeof place, "%s/%lu", disk, (unsigned long) what->st_ino);
    snprintf(draft, sizeof draft, "%s.%ld", place, (long) syscall(SYS_gettid));
    snprintf(self, sizeof self, "/proc/self/fd/%d", from);
    FILE *to = fopen(draft, "w");
    if (to == NULL)
        abort();
    if (S_ISDIR(what->st_mode)) {
        DIR *names = opendir(self);
        for (struct dirent *one; (one = readdir(names)) != NULL;)
            fprintf(to, "%lu/%s%c", (unsigned long) one->d_ino, one->d_name, 0);
        closedir(names);
    } else {
        char part[65536];
        off_t at = 0;
        /* The descriptor itself where it can be read: to close another one of the same file would drop
           sqlite's locks. */
        int can = (fcntl(from, F_GETFL) & O_ACCMODE) != O_WRONLY;
        int content = can ? from : open(self, O_RDONLY | O_CLOEXEC);
        for (ssize_t count; (count = pread(content, part, sizeof part, at)) > 0; at += count)
            fwrite(part, 1, (size_t) count, to);
        if (!can)
            close(content);
    }
    if (fclose(to) != 0 || rename(draft, place) != 0)
        abort();
}

static int sync_and_put(int number, int descriptor)
{
    const char *disk = getenv("POWER_CUT_DISK");
    int kept = errno;
    struct stat what;
    if (disk != NULL && fstat(descriptor, &what) == 0)
        put(disk, descriptor, &what);
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
