/* moved SINK: adds to a buffer, run function by run function, until its standard input ends. What happens to its
   process meanwhile, it does not know. */
#include "check.h"
#include <intel-coi/source/COIBuffer_source.h>
#include <intel-coi/source/COIEngine_source.h>
#include <intel-coi/source/COIPipeline_source.h>
#include <intel-coi/source/COIProcess_source.h>
#include <poll.h>
#include <string.h>

int main(int argc, char **argv)
{
    static unsigned char bytes[10000];
    COIENGINE engine;
    COIPROCESS process;
    COIPIPELINE pipe;
    COIFUNCTION add;
    COIBUFFER buffer;
    COI_ACCESS_FLAGS write = COI_SINK_WRITE;
    const char *name = "add";
    struct pollfd input = {0, POLLIN, 0};
    unsigned runs = 0, at;
    int8_t status = 0;
    if (argc != 2)
        return 2;
    CHECK(COIEngineGetHandle(COI_ISA_MIC, 0, &engine), COI_SUCCESS);
    CHECK(COIProcessCreateFromFile(engine, argv[1], 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process), COI_SUCCESS);
    CHECK(COIProcessGetFunctionHandles(process, 1, &name, &add), COI_SUCCESS);
    CHECK(COIPipelineCreate(process, NULL, 0, &pipe), COI_SUCCESS);
    CHECK(COIBufferCreate(sizeof bytes, COI_BUFFER_NORMAL, 0, bytes, 1, &process, &buffer), COI_SUCCESS);
    if (failures)
        END();
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0 && !failures) {
        CHECK(COIPipelineRunFunction(pipe, add, 1, &buffer, &write, 0, NULL, NULL, 0, NULL, 0, NULL), COI_SUCCESS);
        runs++;
    }
    CHECK(COIBufferRead(buffer, 0, bytes, sizeof bytes, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    for (at = 0; at < sizeof bytes && bytes[at] == (unsigned char)runs; at++)
        ;
    TRUE(at == sizeof bytes && runs > 0);
    CHECK(COIProcessDestroy(process, -1, 0, &status, NULL), COI_SUCCESS);
    TRUE(status == 7);
    END();
}
