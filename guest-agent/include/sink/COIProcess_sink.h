/* The sink's process. */
#ifndef COIPROCESS_SINK_H
#define COIPROCESS_SINK_H

#include <common/COIResult_common.h>
#include <common/COITypes_common.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns when the host destroys the process. */
COIRESULT COIProcessWaitForShutdown(void);

#ifdef __cplusplus
}
#endif
#endif
