/* Says what a call gave and what it should have given, if that is something else. */
#ifndef CHECK_H
#define CHECK_H

#include <common/COIResult_common.h>
#include <stdio.h>

static int failures;

#define CHECK(call, expected)                                                                                          \
    do {                                                                                                               \
        COIRESULT got_ = (call);                                                                                       \
        if (got_ != (expected)) {                                                                                      \
            failures++;                                                                                                \
            printf("%s:%d: %s is %s, not %s\n", __FILE__, __LINE__, #call, COIResultGetName(got_),                     \
                   COIResultGetName(expected));                                                                        \
        }                                                                                                              \
    } while (0)

#define TRUE(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            failures++;                                                                                                \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                                  \
        }                                                                                                              \
    } while (0)

#define END()                                                                                                          \
    do {                                                                                                               \
        printf("%d failures\n", failures);                                                                             \
        return failures != 0;                                                                                          \
    } while (0)

#endif
