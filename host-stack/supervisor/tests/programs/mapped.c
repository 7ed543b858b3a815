/* Counts in memory and in a file that it has mapped but not open: both must always say the same, until there is a file
 * `stop`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    int fd = open("counter", O_RDWR | O_CREAT, 0600);
    if (ftruncate(fd, 4096) != 0)
        return 1;
    volatile long *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    long *huge = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (huge != MAP_FAILED)
        huge[1000] = 7;
    puts("ready");
    fflush(stdout);
    long n = 0;
    while (access("stop", F_OK) != 0 && *count == n)
        *count = ++n;
    int kept = huge == MAP_FAILED || huge[1000] == 7;
    /* Only whole huge pages can be unmapped. */
    if (huge != MAP_FAILED)
        kept &= munmap(huge, 4096) != 0;
    puts(*count == n && kept ? "right" : "wrong");
    return 0;
}
