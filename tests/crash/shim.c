/* Stands between a process and the C library: what it does to files below one folder is written to a log,
 * in order, with the bytes; and at the n-th such call the process is killed or the call fails.
 *
 * Loaded by LD_PRELOAD, so it sees SQLite's calls as well as Python's. It does nothing until crash_begin().
 * Every call goes on by number: the C library's own functions are those that are replaced here. A record
 * follows the deed, under one lock. What is not seen (a mapping, say) the reader of the log notices: the
 * files must be in the end what the log makes of them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { GO_ON, KILL, FAIL, FAIL_ON };
struct record {
    uint8_t kind, pad[7];
    uint64_t one, two, node, offset;
    uint32_t name, other;
    uint64_t data;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int log_fd = -1, how = GO_ON, wrong = EIO;
static long count, at;

void crash_begin(const char *folder, int fd, long strike_at, int strike_how, int error) {
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    count = 0; at = strike_at; how = strike_how; wrong = error; log_fd = fd;
}

long crash_count(void) { return count; }

/* What struck strikes no more: the disk is mended, or has room again. */
void crash_mend(void) { how = GO_ON; }

static void put(char kind, uint64_t one, uint64_t two, uint64_t node, uint64_t offset, const char *name,
                const char *other, const void *data, uint64_t size) {
    struct record record = { (uint8_t)kind, {0}, one, two, node, offset, 0, 0, size };
    record.name = name ? strlen(name) : 0;
    record.other = other ? strlen(other) : 0;
    struct iovec parts[4] = { { &record, sizeof record }, { (void *)name, record.name },
                              { (void *)other, record.other }, { (void *)data, size } };
    size_t wanted = sizeof record + record.name + record.other + size;
    if (syscall(SYS_writev, log_fd, parts, 4) != (long)wanted) {
        dprintf(2, "the log of operations could not be written\n");
        _exit(99);
    }
}

void crash_mark(const char *text) {
    pthread_mutex_lock(&lock);
    if (log_fd >= 0) put('X', 0, 0, 0, 0, text, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
}

/* Whether this operation is to be struck. A full disk goes on refusing what needs room. */
static int struck(int grows) {
    count++;
    if (how == FAIL_ON) return grows && count >= at;
    return how != GO_ON && count == at;
}

static void die_if_so(void) {
    if (how == KILL) {
        syscall(SYS_kill, getpid(), SIGKILL);
        for (;;) pause();
    }
}

static int below(const char *path) {
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int ours(int fd) {
    char path[PATH_MAX];
    return log_fd >= 0 && fd != log_fd && path_of(fd, path) && below(path);
}

static uint64_t node_of_fd(int fd) { struct stat found; return fstat(fd, &found) ? 0 : found.st_ino; }

/* The folder and the last name of a path. Whether it lies below the root. */
struct place { char folder[PATH_MAX]; char name[NAME_MAX + 1]; uint64_t folder_node, node; };

static int find(int dirfd, const char *path, struct place *place) {
    char whole[2 * PATH_MAX], top[PATH_MAX];
    struct stat found;
    if (log_fd < 0 || !path) return 0;
    if (path[0] == '/') snprintf(whole, sizeof whole, "%s", path);
    else {
        if (dirfd == AT_FDCWD) { if (syscall(SYS_getcwd, top, sizeof top) < 0) return 0; }
        else if (!path_of(dirfd, top)) return 0;
        snprintf(whole, sizeof whole, "%s/%s", top, path);
    }
    char *end = strrchr(whole, '/');
    if (!end || strlen(end + 1) > NAME_MAX) return 0;
    snprintf(place->name, sizeof place->name, "%s", end + 1);
    *end = 0;
    if (strlen(whole) >= PATH_MAX || !below(whole)) return 0;
    strcpy(place->folder, whole);
    place->folder_node = stat(whole, &found) ? 0 : found.st_ino;
    *end = '/';
    place->node = lstat(whole, &found) ? 0 : found.st_ino;
    return 1;
}

static int refuse(void) { errno = wrong; return -1; }

#define BEGIN pthread_mutex_lock(&lock)
#define END(value) do { int kept = errno; pthread_mutex_unlock(&lock); errno = kept; return value; } while (0)

static int open_at(int dirfd, const char *path, int flags, mode_t mode) {
    struct place place;
    if (!(flags & (O_CREAT | O_TRUNC)) || !find(dirfd, path, &place))
        return syscall(SYS_openat, dirfd, path, flags, mode);
    BEGIN;
    int is_new = !place.node && (flags & O_CREAT);
    if ((is_new || (flags & O_TRUNC)) && struck(1)) {
        die_if_so();
        END(refuse());
    }
    int fd = syscall(SYS_openat, dirfd, path, flags, mode);
    if (fd >= 0 && is_new) put('C', place.folder_node, 0, node_of_fd(fd), 0, place.name, NULL, NULL, 0);
    else if (fd >= 0 && (flags & O_TRUNC)) put('T', 0, 0, node_of_fd(fd), 0, NULL, NULL, NULL, 0);
    END(fd);
}

#define MODE mode_t mode = 0; if (flags & O_CREAT) { va_list rest; va_start(rest, flags); \
    mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *path, int flags, ...) { MODE return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_at(AT_FDCWD, path, flags, mode); }
int openat(int dirfd, const char *path, int flags, ...) { MODE return open_at(dirfd, path, flags, mode); }
int openat64(int dirfd, const char *path, int flags, ...) { MODE return open_at(dirfd, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) { return open_at(dirfd, path, flags, 0); }
int __openat64_2(int dirfd, const char *path, int flags) { return open_at(dirfd, path, flags, 0); }
int creat(const char *path, mode_t mode) {
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* Of a write that is struck, half arrives. */
static ssize_t write_at(int fd, const struct iovec *parts, int number, off_t offset, int moves) {
    size_t size = 0;
    for (int n = 0; n < number; n++) size += parts[n].iov_len;
    uint64_t node = node_of_fd(fd);
    if (moves) {
        offset = syscall(SYS_lseek, fd, 0, SEEK_CUR);
        if (fcntl(fd, F_GETFL) & O_APPEND) { struct stat found; fstat(fd, &found); offset = found.st_size; }
    }
    BEGIN;
    int strike = struck(1);
    size_t left = strike ? size / 2 : size, done = 0;
    for (int n = 0; n < number && left; n++) {
        size_t some = parts[n].iov_len < left ? parts[n].iov_len : left;
        if (!some) continue;
        ssize_t wrote = moves ? syscall(SYS_write, fd, parts[n].iov_base, some)
                              : syscall(SYS_pwrite64, fd, parts[n].iov_base, some, offset + done);
        if (wrote < 0) { if (!done) END(-1); break; }
        put('W', 0, 0, node, offset + done, NULL, NULL, parts[n].iov_base, wrote);
        done += wrote; left -= wrote;
        if ((size_t)wrote < some) break;
    }
    if (strike) { die_if_so(); END(refuse()); }
    END((ssize_t)done);
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = { (void *)data, size };
    return ours(fd) ? write_at(fd, &part, 1, 0, 1) : syscall(SYS_write, fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int number) {
    return ours(fd) ? write_at(fd, parts, number, 0, 1) : syscall(SYS_writev, fd, parts, number);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    struct iovec part = { (void *)data, size };
    return ours(fd) ? write_at(fd, &part, 1, offset, 0) : syscall(SYS_pwrite64, fd, data, size, offset);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    return pwrite64(fd, data, size, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int number, off64_t offset) {
    return ours(fd) ? write_at(fd, parts, number, offset, 0)
                    : syscall(SYS_pwritev, fd, parts, number, offset, 0);
}
ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t offset) {
    return pwritev64(fd, parts, number, offset);
}

/* So that copying goes by write(). */
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
    if (ours(out)) { errno = EINVAL; return -1; }
    return syscall(SYS_sendfile, out, in, offset, size);
}
ssize_t sendfile(int out, int in, off_t *offset, size_t size) { return sendfile64(out, in, offset, size); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    if (ours(out)) { errno = ENOSYS; return -1; }
    return syscall(SYS_copy_file_range, in, from, out, to, size, flags);
}

int ftruncate64(int fd, off64_t size) {
    if (!ours(fd)) return syscall(SYS_ftruncate, fd, size);
    BEGIN;
    if (struck(0)) { die_if_so(); END(refuse()); }
    int done = syscall(SYS_ftruncate, fd, size);
    if (!done) put('T', 0, 0, node_of_fd(fd), size, NULL, NULL, NULL, 0);
    END(done);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

/* After a sync that failed, the bytes are gone from the cache: 'E' says so. */
static int sync_it(int fd, long call) {
    if (!ours(fd)) return syscall(call, fd);
    BEGIN;
    if (struck(0)) {
        die_if_so();
        put('E', 0, 0, node_of_fd(fd), 0, NULL, NULL, NULL, 0);
        END(refuse());
    }
    int done = syscall(call, fd);
    if (!done) put('F', 0, 0, node_of_fd(fd), 0, NULL, NULL, NULL, 0);
    END(done);
}
int fsync(int fd) { return sync_it(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_it(fd, SYS_fdatasync); }

int mkdirat(int dirfd, const char *path, mode_t mode) {
    struct place place;
    if (!find(dirfd, path, &place) || place.node) return syscall(SYS_mkdirat, dirfd, path, mode);
    BEGIN;
    if (struck(1)) { die_if_so(); END(refuse()); }
    int done = syscall(SYS_mkdirat, dirfd, path, mode);
    if (!done && find(dirfd, path, &place))
        put('M', place.folder_node, 0, place.node, 0, place.name, NULL, NULL, 0);
    END(done);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from, const char *path, int to, const char *name, int flags) {
    struct place old, new;
    if (!find(to, name, &new) || !find(from, path, &old))
        return syscall(SYS_linkat, from, path, to, name, flags);
    BEGIN;
    if (struck(1)) { die_if_so(); END(refuse()); }
    int done = syscall(SYS_linkat, from, path, to, name, flags);
    if (!done) put('L', new.folder_node, 0, old.node, 0, new.name, NULL, NULL, 0);
    END(done);
}
int link(const char *path, const char *name) { return linkat(AT_FDCWD, path, AT_FDCWD, name, 0); }

int unlinkat(int dirfd, const char *path, int flags) {
    struct place place;
    if (!find(dirfd, path, &place) || !place.node) return syscall(SYS_unlinkat, dirfd, path, flags);
    BEGIN;
    if (struck(0)) { die_if_so(); END(refuse()); }
    int done = syscall(SYS_unlinkat, dirfd, path, flags);
    if (!done) put('U', place.folder_node, 0, place.node, 0, place.name, NULL, NULL, 0);
    END(done);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int renameat2(int from, const char *path, int to, const char *name, unsigned flags) {
    struct place old, new;
    if (!find(to, name, &new) || !find(from, path, &old))
        return syscall(SYS_renameat2, from, path, to, name, flags);
    BEGIN;
    if (struck(0)) { die_if_so(); END(refuse()); }
    int done = syscall(SYS_renameat2, from, path, to, name, flags);
    if (!done) put('R', old.folder_node, new.folder_node, old.node, 0, old.name, new.name, NULL, 0);
    END(done);
}
int renameat(int from, const char *path, int to, const char *name) {
    return renameat2(from, path, to, name, 0);
}
int rename(const char *path, const char *name) { return renameat2(AT_FDCWD, path, AT_FDCWD, name, 0); }
