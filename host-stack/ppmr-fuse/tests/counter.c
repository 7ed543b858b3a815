/* Counts, and says how far it is. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* So large that its image does not fit between source and target. */
static char memory[16 << 20];

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    memset(memory, 1, sizeof memory);
    for (long count = 1;; count++) {
        char next[4096];
        snprintf(next, sizeof next, "%s.next", argv[1]);
        FILE *file = fopen(next, "w");
        if (!file || fprintf(file, "%ld\n", count) < 0 || fclose(file) || rename(next, argv[1]))
            return 1;
        usleep(1000);
    }
}
