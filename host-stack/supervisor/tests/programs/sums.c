/* Sums by four OpenMP threads, round after round, until there is a file `stop`: each must be the same, to the bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 1 << 16 };
static double a[N];

static double sum(void) {
    double parts[64] = {0}, s = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(4)
    for (int part = 0; part < 64; part++)
        for (int i = part * (N / 64); i < (part + 1) * (N / 64); i++)
            parts[part] += a[i] / (1 + parts[part]);
    for (int part = 0; part < 64; part++)
        s += parts[part];
    return s;
}

int main(void) {
    for (int i = 0; i < N; i++)
        a[i] = 1.0 / (i + 1);
    double first = sum();
    long rounds = 0;
    puts("begun");
    fflush(stdout);
    while (access("stop", F_OK) != 0) {
        double s = sum();
        rounds++;
        if (memcmp(&s, &first, sizeof s) != 0) {
            printf("wrong %ld %a %a\n", rounds, s, first);
            return 1;
        }
    }
    puts(rounds ? "right" : "wrong");
    return 0;
}
