/* The sink's process. */
#ifndef _COIPROCESS_SINK_H
#define _COIPROCESS_SINK_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Returns when the host ends the process: run functions that run have returned by then, and no other
 * one begins. Nothing else of COI may be called after that.
 */
COIRESULT COIProcessWaitForShutdown();

/*
 * Returns when the host has written what the process wrote to its standard output and error until
 * now; at once if the process was created without a proxy.
 */
COIRESULT COIProcessProxyFlush();

/*
 * Loads a library of the host's, as COIProcessLoadLibraryFromFile does on the host: a path there, or a
 * name that is searched for; the name that it is to have, or a null pointer for its DT_SONAME;
 * directories to search in place of those in SINK_LD_LIBRARY_PATH, or a null pointer; flags of dlopen.
 */
COIRESULT COIProcessLoadSinkLibraryFromFile(const char *in_pFileName, const char *in_pLibraryName,
                                            const char *in_LibrarySearchPath, uint32_t in_Flags,
                                            COILIBRARY *out_pLibrary);

#ifdef __cplusplus
}
#endif
#endif
