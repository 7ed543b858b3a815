/* An area moves next to another one, so that the kernel makes both one, and then the other one is written to. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4 };

static char *map_at(char *at) {
    return mmap(at, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void say_and_wait(const char *word, const char *path) {
    puts(word);
    fflush(stdout);
    while (access(path, F_OK) != 0)
        usleep(1000);
}

int main(void) {
    char *room = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *still = map_at(room + 16 * PAGE), *moves = map_at(room + 40 * PAGE);
    memset(still, 'a', PAGES * PAGE);
    say_and_wait("ready", "move");
    char *next = still + PAGES * PAGE;
    if (mremap(moves, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, next) != next)
        return 1;
    memset(still + PAGE, 'b', PAGE);
    memset(next, 'c', PAGE);
    say_and_wait("moved", "go");
    for (int page = 0; page < 2 * PAGES; page++)
        for (int at = 0; at < PAGE; at++)
            if (still[page * PAGE + at] != "abaac\0\0\0"[page])
                return 2 + page;
    puts("right");
    return 0;
}
