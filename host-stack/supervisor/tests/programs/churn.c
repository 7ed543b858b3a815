/* Writes at random into memory of many kinds, from several threads, while areas come, go, move and change; a word of
   each page says what the page must be. It looks at all of it again and again, and ends well when there is a file `go`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                   \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("wrong: %d: %s\n", __LINE__, #what);                                                                \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

enum { PAGE = 4096, AREAS = 24, PAGES = 64, THREADS = 3 };

/* What a page is full of; 0: nothing. */
struct area {
    char *at;
    size_t pages;
    uint32_t *full_of;
};

static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void fill(struct area *area, size_t page, uint32_t word) {
    uint32_t *at = (uint32_t *)(area->at + page * PAGE);
    area->full_of[page] = word;
    for (size_t i = 0; i < PAGE / 4; i += 1 + word % 7)
        at[i] = word;
    at[PAGE / 4 - 1] = word;
}

static void look(struct area *area) {
    for (size_t page = 0; page < area->pages; page++) {
        uint32_t *at = (uint32_t *)(area->at + page * PAGE), word = area->full_of[page];
        for (size_t i = 0; i < PAGE / 4; i += 1 + word % 7)
            CHECK(at[i] == word);
        CHECK(at[PAGE / 4 - 1] == word);
    }
}

static char *map(size_t pages) {
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void change(struct area *area, uint64_t *state) {
    size_t page = draw(state) % area->pages;
    switch (draw(state) % 16) {
    case 0: /* It goes, another comes in its place. */
        area->at = mmap(area->at, area->pages * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(area->at != MAP_FAILED);
        memset(area->full_of, 0, PAGES * sizeof *area->full_of);
        break;
    case 1: /* It moves. */
        ;
        char *to = map(area->pages);
        area->at = mremap(area->at, area->pages * PAGE, area->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        CHECK(area->at == to);
        break;
    case 2: /* Some of it is given back. */
        CHECK(madvise(area->at + page * PAGE, (area->pages - page) * PAGE, MADV_DONTNEED) == 0);
        memset(area->full_of + page, 0, (area->pages - page) * sizeof *area->full_of);
        break;
    case 3: /* It grows, or shrinks. */
        ;
        size_t pages = 1 + draw(state) % PAGES;
        area->at = mremap(area->at, area->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
        CHECK(area->at != MAP_FAILED);
        for (size_t i = area->pages < pages ? area->pages : pages; i < PAGES; i++)
            area->full_of[i] = 0;
        area->pages = pages;
        break;
    case 4: /* It is hidden for a moment. */
        mprotect(area->at, area->pages * PAGE, PROT_NONE);
        usleep(100);
        mprotect(area->at, area->pages * PAGE, PROT_READ | PROT_WRITE);
        break;
    default:
        fill(area, page, (uint32_t)draw(state));
    }
}

static volatile int stop;

static void *churn(void *seed) {
    uint64_t state = (uint64_t)seed;
    struct area areas[AREAS];
    for (int i = 0; i < AREAS; i++)
        areas[i] = (struct area){map(PAGES), PAGES, calloc(PAGES, sizeof(uint32_t))};
    for (uint64_t step = 0; !stop; step++) {
        struct area *area = &areas[draw(&state) % AREAS];
        change(area, &state);
        if (step % 64 == 0)
            look(area);
        if (step % 256 == 0)
            usleep(500);
    }
    for (int i = 0; i < AREAS; i++)
        look(&areas[i]);
    return NULL;
}

static void write_blocks(void) {
    uint32_t page[PAGE / 4];
    int fd = open("blocks", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (uint32_t block = 0; block < PAGES; block++) {
        for (int i = 0; i < PAGE / 4; i++)
            page[i] = block + 1;
        CHECK(write(fd, page, PAGE) == PAGE);
    }
    CHECK(fsync(fd) == 0);
    close(fd);
}

/* Pages that a device writes to, as far as the file system lets it: no page table tells who does. */
static void *read_directly(void *unused) {
    uint64_t state = 99;
    uint32_t full[PAGES] = {0};
    struct area area = {map(PAGES), PAGES, full};
    int fd = open("blocks", O_RDONLY | O_DIRECT);
    if (fd < 0)
        fd = open("blocks", O_RDONLY);
    while (!stop) {
        size_t from = draw(&state) % PAGES, to = draw(&state) % PAGES, count = 1 + draw(&state) % 16;
        if (from + count > PAGES || to + count > PAGES)
            continue;
        CHECK(pread(fd, area.at + to * PAGE, count * PAGE, from * PAGE) == (ssize_t)(count * PAGE));
        for (size_t i = 0; i < count; i++)
            full[to + i] = from + i + 1;
        look(&area);
    }
    return unused;
}

/* Memory that parent and children write to: children that end before anybody looks, too. */
static void children(uint64_t *state, struct area *shared, struct area *own) {
    for (int i = 0; i < 3; i++) {
        size_t page = draw(state) % PAGES;
        uint32_t word = (uint32_t)draw(state);
        pid_t child = fork();
        if (child == 0) {
            fill(shared, page, word);
            look(own);
            fill(own, page, word + 1);
            look(own);
            _exit(7);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 7 << 8);
        shared->full_of[page] = word;
    }
    look(shared);
    look(own);
    fill(own, draw(state) % PAGES, (uint32_t)draw(state));
}

int main(void) {
    pthread_t threads[THREADS], reader;
    for (uint64_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, churn, (void *)(i + 1));
    write_blocks();
    pthread_create(&reader, NULL, read_directly, NULL);
    uint64_t state = 77;
    uint32_t full[PAGES] = {0}, of_memfd[PAGES] = {0}, own_full[PAGES] = {0};
    struct area shared = {mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), PAGES,
                          full};
    int memfd = memfd_create("churn", 0);
    CHECK(ftruncate(memfd, PAGES * PAGE) == 0);
    struct area file = {mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0), PAGES, of_memfd};
    struct area own = {map(PAGES), PAGES, own_full};
    puts("ready");
    fflush(stdout);
    while (access("go", F_OK) != 0) {
        children(&state, &shared, &own);
        /* Through the descriptor: no page table tells. */
        uint32_t page[PAGE / 4], word = (uint32_t)draw(&state) / 7 * 7;
        for (int i = 0; i < PAGE / 4; i++)
            page[i] = word;
        size_t at = draw(&state) % PAGES;
        CHECK(pwrite(memfd, page, PAGE, at * PAGE) == PAGE);
        of_memfd[at] = word;
        look(&file);
        usleep(500);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(reader, NULL);
    look(&shared);
    look(&file);
    look(&own);
    puts("right");
    return 0;
}
