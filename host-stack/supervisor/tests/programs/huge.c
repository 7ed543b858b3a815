/* Has huge pages of every kind that can be shared, and looks at them when there is a file `go`. Its argument is their size
 * in MiB; behind it, a directory where a hugetlbfs is mounted, or nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SHM_HUGE_SHIFT
#define SHM_HUGE_SHIFT 26
#endif

static size_t huge;
static int shift;
static const char *mounted;

static void wrong(const char *what, ...) {
    va_list list;
    va_start(list, what);
    printf("wrong: ");
    vprintf(what, list);
    puts("");
    exit(1);
}

static void *right(void *result, const char *what) {
    if (result == MAP_FAILED)
        wrong("%s: %s", what, strerror(errno));
    return result;
}

static int done(int result, const char *what) {
    if (result < 0)
        wrong("%s: %s", what, strerror(errno));
    return result;
}

static char *map(int pages, int flags, int fd) {
    int protection = fd >= 0 && !(flags & MAP_PRIVATE) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    if (fd < 0)
        flags |= MAP_ANONYMOUS | MAP_HUGETLB | shift << MAP_HUGE_SHIFT;
    return right(mmap(NULL, pages * huge, protection, flags, fd, 0), "mmap");
}

static int file(const char *name, int pages, int flags) {
    int fd = done(memfd_create(name, MFD_HUGETLB | shift << MAP_HUGE_SHIFT | flags), "memfd_create");
    done(ftruncate(fd, pages * huge), "ftruncate");
    return fd;
}

/* Not all of a page: its beginning, somewhere within it, and its end. */
static void fill(char *at, int page, int seed) {
    unsigned *words = (unsigned *)(at + page * huge);
    size_t count = huge / sizeof *words, places[] = {0, count / 3, count - 2000};
    for (int place = 0; place < 3; place++)
        for (int n = 0; n < 2000; n++)
            words[places[place] + n] = seed * 77777u + n;
}

static void look(const char *what, const char *at, int page, int seed) {
    const unsigned *words = (const unsigned *)(at + page * huge);
    size_t count = huge / sizeof *words, places[] = {0, count / 3, count - 2000};
    for (int place = 0; place < 3; place++)
        for (int n = 0; n < 2000; n++)
            if (words[places[place] + n] != (seed ? seed * 77777u + n : 0))
                wrong("%s: page %d, place %d, word %d is %x", what, page, place, n, words[places[place] + n]);
    if (words[count / 2] != 0)
        wrong("%s: page %d, middle", what, page);
}

static void in_child(void (*work)(void)) {
    pid_t child = done(fork(), "fork");
    if (child == 0) {
        work();
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        wrong("a child ended with %x", status);
}

static char *shared, *lazy, *both, *own, *kept, *late, *parts, *anonymous;
static int memory, sealed, allocated, passed, ends[2], back[2], segment = -1, detached, divided;

static void write_shared(void) {
    fill(shared, 3, 3);
    fill(both, 4, 44);
}

static void be_child(void) {
    char byte;
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1)
        _exit(9);
    look("shared, of the child", shared, 1, 1);
    look("shared, of the child", shared, 3, 3);
    look("private, of the child", anonymous, 0, 90);
    look("private, of the child", anonymous, 1, 99);
    look("files, of the child", both, 4, 4);
    fill(shared, 6, 66);
    fill(both, 5, 55);
    if (segment >= 0)
        fill(kept, 2, 122);
    _exit(0);
}

static long blocks(int fd) {
    struct stat stat;
#ifdef ORDINARY_LATER
    return 0;
#endif
    done(fstat(fd, &stat), "fstat");
    return stat.st_blocks;
}

static void send_file(int to, int fd) {
    char room[CMSG_SPACE(sizeof fd)] = {0}, byte = 'x';
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    done(sendmsg(to, &message, 0), "sendmsg");
}

static int receive_file(int from) {
    char room[CMSG_SPACE(sizeof from)], byte;
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    done(recvmsg(from, &message, 0), "recvmsg");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Files in a hugetlbfs: with a name, without, without and not open, and mapped private. */
static char *named, *nameless, *closed, *mine;
static int nameless_fd, named_fd;
static void mount_files(void) {
    char path[256];
    snprintf(path, sizeof path, "%s/named-%d", mounted, getpid());
    named_fd = done(open(path, O_RDWR | O_CREAT, 0600), path);
    done(ftruncate(named_fd, 3 * huge), "ftruncate");
    named = map(3, MAP_SHARED, named_fd);
    fill(named, 1, 201);
    snprintf(path, sizeof path, "%s/other-%d", mounted, getpid());
    nameless_fd = done(open(path, O_RDWR | O_CREAT, 0600), path);
    unlink(path);
    done(ftruncate(nameless_fd, 3 * huge), "ftruncate");
    nameless = map(3, MAP_SHARED, nameless_fd);
    fill(nameless, 2, 202);
    int fd = done(open(path, O_RDWR | O_CREAT, 0600), path);
    done(ftruncate(fd, 3 * huge), "ftruncate");
    closed = map(3, MAP_SHARED, fd);
    close(fd);
    unlink(path);
    fill(closed, 0, 203);
    snprintf(path, sizeof path, "%s/third-%d", mounted, getpid());
    fd = done(open(path, O_RDWR | O_CREAT, 0600), path);
    done(ftruncate(fd, 3 * huge), "ftruncate");
    char *at = map(3, MAP_SHARED, fd);
    fill(at, 0, 204);
    fill(at, 1, 205);
    munmap(at, 3 * huge);
    mine = map(3, MAP_PRIVATE, fd);
    close(fd);
    fill(mine, 1, 206);
}

static void look_at_files(void) {
    char path[256];
    look("named", named, 1, 201);
    look("named", named, 0, 0);
    look("nameless", nameless, 2, 202);
    look("nameless", nameless, 1, 0);
    char *again = map(3, MAP_SHARED, nameless_fd);
    fill(nameless, 1, 207);
    look("nameless, again", again, 1, 207);
    look("closed", closed, 0, 203);
    look("closed", closed, 1, 0);
    look("mine", mine, 0, 204);
    look("mine", mine, 1, 206);
    look("mine", mine, 2, 0);
    const char *names[] = {"named", "third"};
    for (int n = 0; n < 2; n++) {
        snprintf(path, sizeof path, "%s/%s-%d", mounted, names[n], getpid());
        done(unlink(path), path);
    }
}

int main(int count, char **arguments) {
    int mib = atoi(arguments[1]);
    huge = (size_t)mib << 20;
    shift = __builtin_ctzl(huge);
    mounted = count > 2 ? arguments[2] : NULL;
    int small = mib > 2;

    /* Of a child that has ended, touched and zero, and untouched. */
    int most = small ? 2 : 8;
    shared = mmap(NULL, most * huge, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | shift << MAP_HUGE_SHIFT, -1, 0);
    if (shared == MAP_FAILED) {
        puts("no huge pages");
        return 0;
    }
    fill(shared, 1, 1);
    if (small) {
        puts("ready");
        fflush(stdout);
        while (access("go", F_OK) != 0)
            usleep(1000);
        look("shared", shared, 1, 1);
        fill(shared, 0, 2);
        puts("right");
        return 0;
    }
    *(volatile char *)(shared + 5 * huge) = 0;
    /* More than there are. */
    lazy = map(4096, MAP_SHARED | MAP_NORESERVE, -1);
    fill(lazy, 2000, 5);
    munmap(lazy + 3000 * huge, 10 * huge);
    mprotect(lazy + 2000 * huge, huge, PROT_NONE);

    memory = file("memory", 6, MFD_ALLOW_SEALING);
    both = map(6, MAP_SHARED, memory);
    fill(both, 0, 10);
    fill(both, 4, 4);
    own = map(6, MAP_PRIVATE, memory);
    look("private", own, 0, 10);
    fill(own, 4, 40);
    in_child(write_shared);
    fill(both, 4, 4);

    /* Nobody maps these. */
    sealed = file("sealed", 3, MFD_ALLOW_SEALING);
    late = map(3, MAP_SHARED, sealed);
    fill(late, 1, 31);
    munmap(late, 3 * huge);
    done(lseek(sealed, 12345, SEEK_SET), "lseek");
    done(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK), "F_ADD_SEALS");
    allocated = file("", 5, 0);
    done(fallocate(allocated, 0, huge, 2 * huge), "fallocate");
    long before = blocks(allocated), of_memory = blocks(memory);
    int way[2];
    done(socketpair(AF_UNIX, SOCK_STREAM, 0, way), "socketpair");
    passed = file("passed", 2, 0);
    late = map(2, MAP_SHARED, passed);
    fill(late, 0, 71);
    munmap(late, 2 * huge);
    send_file(way[0], passed);
    close(passed);

#ifndef NO_SEGMENTS
    segment = shmget(IPC_PRIVATE, 3 * huge - 5000, IPC_CREAT | 0600 | SHM_HUGETLB | shift << SHM_HUGE_SHIFT);
    if (segment < 0 && errno == EPERM)
        fprintf(stderr, "no segments\n");
    else {
        done(segment, "shmget");
        kept = right(shmat(segment, NULL, 0), "shmat");
        fill(kept, 1, 121);
        detached = done(shmget(IPC_PRIVATE, 2 * huge, IPC_CREAT | 0600 | SHM_HUGETLB | shift << SHM_HUGE_SHIFT), "shmget");
        char *at = right(shmat(detached, NULL, 0), "shmat");
        fill(at, 1, 131);
        shmdt(at);
        divided = done(shmget(IPC_PRIVATE, 4 * huge, IPC_CREAT | 0600 | SHM_HUGETLB | shift << SHM_HUGE_SHIFT), "shmget");
        parts = right(shmat(divided, NULL, 0), "shmat");
        fill(parts, 0, 141);
        fill(parts, 3, 143);
        munmap(parts + huge, huge);
        shmctl(divided, IPC_RMID, NULL);
        FILE *list = fopen("objects", "w");
        fprintf(list, "m%d m%d m%d", segment, detached, divided);
        fclose(list);
    }
#endif

    anonymous = map(3, MAP_PRIVATE, -1);
    fill(anonymous, 0, 90);
    fill(anonymous, 1, 91);
    if (mounted)
        mount_files();
    done(pipe(ends), "pipe");
    done(pipe(back), "pipe");
    pid_t child = done(fork(), "fork");
    if (child == 0) {
        fill(anonymous, 1, 99);
        done(write(back[1], "y", 1), "write");
        be_child();
    }
    char byte;
    done(read(back[0], &byte, 1), "read");
    puts("ready");
    fflush(stdout);
    while (access("go", F_OK) != 0)
        usleep(1000);

    done(write(ends[1], "x", 1), "write");
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        wrong("the child ended with %x", status);
    int seeds[] = {0, 1, 0, 3, 0, 0, 66, 0};
    /* The child has made one. */
    if (blocks(memory) != of_memory + before / 2)
        wrong("%ld blocks of what was %ld", blocks(memory), of_memory);
    for (int page = 0; page < 8; page++)
        look("shared", shared, page, seeds[page]);
    mprotect(lazy + 2000 * huge, huge, PROT_READ | PROT_WRITE);
    look("lazy", lazy, 2000, 5);

    look("memory", both, 0, 10);
    look("memory", both, 1, 0);
    look("memory", both, 4, 4);
    look("memory", both, 5, 55);
    look("private", own, 0, 10);
    look("private", own, 4, 40);
    fill(both, 2, 12);
    fill(both, 0, 13);
    look("private, of what is shared", own, 2, 12);
    look("private, of what is shared", own, 0, 13);
    if (ftruncate(memory, 7 * huge) != 0)
        wrong("it cannot grow");

    struct stat stat;
    fstat(sealed, &stat);
    char name[64] = "";
    char path[64];
    sprintf(path, "/proc/self/fd/%d", sealed);
    done(readlink(path, name, sizeof name - 1), "readlink");
    if (strcmp(name, "/memfd:sealed (deleted)") != 0 || stat.st_size != 3 * huge || lseek(sealed, 0, SEEK_CUR) != 12345 ||
        fcntl(sealed, F_GET_SEALS) != (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK))
        wrong("%s of %ld bytes, seals %x", name, stat.st_size, fcntl(sealed, F_GET_SEALS));
    late = right(mmap(NULL, 3 * huge, PROT_READ, MAP_SHARED, sealed, 0), "mmap of what is sealed");
    look("sealed", late, 1, 31);
    look("sealed", late, 0, 0);
    if (blocks(allocated) != before)
        wrong("%ld blocks of what had %ld", blocks(allocated), before);
    int got = receive_file(way[1]);
    late = map(2, MAP_SHARED, got);
    look("passed", late, 0, 71);

    if (segment >= 0) {
        look("segment", kept, 1, 121);
        look("segment", kept, 2, 122);
        char *at = right(shmat(detached, NULL, 0), "shmat");
        look("detached", at, 1, 131);
        look("detached", at, 0, 0);
        look("divided", parts, 0, 141);
        look("divided", parts, 3, 143);
        look("divided", parts, 2, 0);
        struct shmid_ds ds;
        done(shmctl(segment, IPC_STAT, &ds), "shmctl");
#ifdef ORDINARY_LATER
        ds.shm_segsz -= 5000;
#endif
        if (ds.shm_segsz != 3 * huge - 5000)
            wrong("%zu bytes", ds.shm_segsz);
        shmctl(segment, IPC_RMID, NULL);
        shmctl(detached, IPC_RMID, NULL);
    }
    look("anonymous", anonymous, 0, 90);
    look("anonymous", anonymous, 1, 91);
    look("anonymous", anonymous, 2, 0);
#ifndef ORDINARY_LATER
    if (munmap(anonymous, 4096) == 0)
        wrong("a part of a huge page is gone");
#endif
    if (mounted)
        look_at_files();
    puts("right");
    return 0;
}
