/* Appends number after number to a file `numbers`, and ends well when there is a file `go`. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    int file = open("numbers", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0)
        return 1;
    printf("ready\n");
    fflush(stdout);
    for (long number = 1; access("go", F_OK) != 0; number++) {
        if (dprintf(file, "%ld\n", number) < 0)
            return 1;
        usleep(1000);
    }
    printf("right\n");
    return 0;
}
