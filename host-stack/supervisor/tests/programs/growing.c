/* Large private memory of two processes that grows at both its ends, is cut, and written to, until there is a file `go`: each page says
   what it must be. Then each piece of it must be a mapping still, which can be moved at once, if there was a move when it had grown:
   what grows beside memory that a process has by fork(2) is a mapping of its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096, ROOM = 4 * PAGES };

#define CHECK(what)                                                                                                   \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("wrong: %d: %s\n", __LINE__, #what);                                                                \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void map(char *at, size_t pages) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    CHECK(mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
}

static void fill(char *at, size_t pages, uint64_t word) {
    for (size_t page = 0; page < pages; page++)
        *(uint64_t *)(at + page * PAGE) = word + page;
}

static void look(const char *at, size_t pages, uint64_t word) {
    for (size_t page = 0; page < pages; page++)
        CHECK(*(uint64_t *)(at + page * PAGE) == (word == 0 ? 0 : word + page));
}

/* Whether there is a file of this name. */
static int is_there(const char *name) { return access(name, F_OK) == 0; }

static void grow(uint64_t seed, const char *ready, const char *grown) {
    /* Free on both sides; what is cut off in the middle is another area, which cannot be read for a time. */
    char *room = mmap(NULL, (size_t)ROOM * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED && munmap(room, (size_t)ROOM * PAGE) == 0);
    char *start = room + (size_t)(ROOM - PAGES) / 2 * PAGE, *end = start + (size_t)PAGES * PAGE;
    char *heap = sbrk((intptr_t)PAGES * PAGE), *heap_end = heap + (size_t)PAGES * PAGE;
    CHECK(heap != (char *)-1);
    map(start, PAGES);
    uint64_t word = seed;
    while (!is_there("go")) {
        word += 1 << 20;
        fill(start, (end - start) / PAGE, word);
        fill(heap, (heap_end - heap) / PAGE, word);
        if (start - 16 * PAGE > room) {
            start -= 16 * PAGE;
            map(start, 16);
            map(end, 16);
            end += 16 * PAGE;
            look(start, 16, 0);
            look(end - 16 * PAGE, 16, 0);
            CHECK(sbrk(16 * PAGE) == heap_end);
            heap_end += 16 * PAGE;
        } else if (!is_there(grown)) {
            CHECK(close(open(grown, O_CREAT | O_WRONLY, 0600)) == 0);
        }
        char *middle = start + (end - start) / PAGE / 2 * PAGE;
        fill(start, (end - start) / PAGE, word);
        CHECK(mprotect(middle, 32 * PAGE, PROT_NONE) == 0);
        usleep(2000);
        CHECK(mprotect(middle, 32 * PAGE, PROT_READ | PROT_WRITE) == 0);
        CHECK(madvise(middle, 32 * PAGE, MADV_DONTNEED) == 0);
        usleep(2000);
        look(middle, 32, 0);
        fill(middle, 32, word + (middle - start) / PAGE);
        look(start, (end - start) / PAGE, word);
        look(heap, PAGES, word);
        if (ready != NULL) {
            puts(ready);
            fflush(stdout);
            ready = NULL;
        }
    }
    size_t pages = (end - start) / PAGE;
    char *moved = mremap(start, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    look(moved, pages, word);
    look(moved + pages * PAGE, pages, 0);
}

int main(void) {
    /* Not in the heap. */
    static char line[256];
    setvbuf(stdout, line, _IOFBF, sizeof line);
    pid_t child = fork();
    grow(child == 0 ? 1ull << 60 : 1ull << 40, child == 0 ? NULL : "ready", child == 0 ? "grown-child" : "grown");
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("right");
    return 0;
}
