/* As if of another kernel: a vDSO that is not this kernel's to the byte, and less of its data. Its functions are called
 * again when there is a file `go`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static unsigned long start, end;

static int find(const char *name) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    while (!found && fgets(line, sizeof line, maps))
        found = strstr(line, name) && sscanf(line, "%lx-%lx", &start, &end) == 2;
    fclose(maps);
    return found;
}

int main(void) {
    void *vdso = dlopen("linux-vdso.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*now)(clockid_t, struct timespec *) = dlsym(vdso, "__vdso_clock_gettime");
    int (*resolution)(clockid_t, struct timespec *) = dlsym(vdso, "__vdso_clock_getres");
    int (*day)(struct timeval *, void *) = dlsym(vdso, "__vdso_gettimeofday");
    time_t (*seconds)(time_t *) = dlsym(vdso, "__vdso_time");
    int (*processor)(unsigned *, unsigned *, void *) = dlsym(vdso, "__vdso_getcpu");
    struct timespec before, after, fine = {0};
    struct timeval of_day;
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (!find("[vdso]"))
        return 2;
    int mem = open("/proc/self/mem", O_RDWR);
    if (pwrite(mem, "other kernel", 12, end - 12) != 12)
        return 3;
    close(mem);
    puts("ready");
    fflush(stdout);
    /* Nothing calls into it until it is restarted. */
    if (find("[vvar_vclock]"))
        munmap((void *)start, end - start);
    while (access("go", F_OK) != 0)
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 1000000}, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    struct timespec called;
    unsigned cpu = 1 << 30;
    int right = after.tv_sec >= before.tv_sec && after.tv_sec < before.tv_sec + 600;
    right &= now(CLOCK_MONOTONIC, &called) == 0 && called.tv_sec - after.tv_sec < 60;
    right &= resolution(CLOCK_MONOTONIC, &fine) == 0 && fine.tv_nsec > 0;
    right &= day(&of_day, NULL) == 0 && seconds(NULL) - of_day.tv_sec < 60;
    right &= processor(&cpu, NULL, NULL) == 0 && cpu < 1 << 20;
    /* It has both. */
    right &= find("[vdso]") && getauxval(AT_SYSINFO_EHDR) != start;
    puts(right ? "right" : "wrong");
    return 0;
}
