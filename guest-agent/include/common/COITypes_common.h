/* Types of COI, by the names and layouts of the public MPSS interface. */
#ifndef _COITYPES_COMMON_H
#define _COITYPES_COMMON_H

#include <stdint.h>
#include <wchar.h>

#define COIACCESSAPI
#define COIACCESSAPI2

/* Run functions are found by name: they must be in the dynamic symbol table. */
#ifdef __cplusplus
#define COINATIVELIBEXPORT extern "C" __attribute__((visibility("default")))
#else
#define COINATIVELIBEXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* An event is passed by value; what is in it is the library's affair. */
struct coievent {
    uint64_t opaque[2];
};

/* Handles. What they point to is never seen. */
typedef struct coiprocess *COIPROCESS;
typedef struct coipipeline *COIPIPELINE;
typedef struct coifunction *COIFUNCTION;
typedef struct coiengine *COIENGINE;
typedef struct coievent COIEVENT;
typedef struct coibuffer *COIBUFFER;
typedef struct coilibrary *COILIBRARY;
typedef struct coimapinst *COIMAPINSTANCE;

/* A bit for each hardware thread of a card; see COIMacros_common.h. */
typedef uint64_t COI_CPU_MASK[16];

typedef wchar_t coi_wchar_t;

#ifdef __cplusplus
}
#endif

#endif
