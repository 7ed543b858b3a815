/* Loads a library in the version that it is compiled for. Linked with a stub, it ends with the stub's answer. */
#include <common/COIResult_common.h>
#include <source/COIBuffer_source.h>
#include <source/COIEngine_source.h>
#include <source/COIProcess_source.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    COILIBRARY library;
    COIRESULT result;
    (void)argc;
#if COI_LIBRARY_VERSION >= 2
    result = COIProcessLoadLibraryFromFile((COIPROCESS)argv, "/lib64/ld-linux-x86-64.so.2", NULL, NULL,
                                           COI_LOADLIBRARY_V1_FLAGS, &library);
#else
    result = COIProcessLoadLibraryFromFile((COIPROCESS)argv, "/lib64/ld-linux-x86-64.so.2", NULL, NULL, &library);
#endif
    if ((int)result == 77)
        return 77;
    puts(COIResultGetName(result));
    return result != COI_INVALID_HANDLE;
}
