//! What programs call: each function under its name and version, as MPSS's library has them.
//!
//! rustc tells the linker what a cdylib exports, and knows of no versions. A symbol that names its
//! own is exported all the same; only assembly can define one, which jumps to the function.

use std::arch::global_asm;

use crate::{
    buffer::*, engine::*, event::*, library::*, notify::*, perf::*, pipeline::*, process::*,
    result::COIResultGetName, sink::*, sysinfo::*, transfer::*,
};

macro_rules! export {
    ($($function:ident)*) => {$(
        export!(@ $function, concat!(stringify!($function), "@@COI_1.0"));
    )*};
    (@ $function:ident, $versioned:expr) => {
        global_asm!(
            concat!(".pushsection .text.snaprig_", stringify!($function), ", \"ax\", @progbits"),
            concat!(".globl snaprig_", stringify!($function)),
            concat!(".type snaprig_", stringify!($function), ", @function"),
            concat!("snaprig_", stringify!($function), ": jmp {function}"),
            concat!(".size snaprig_", stringify!($function), ", . - snaprig_", stringify!($function)),
            concat!(".symver snaprig_", stringify!($function), ", ", $versioned),
            ".popsection",
            function = sym $function,
        );
    };
}

export! {
    COIBufferAddRef COIBufferAddRefcnt COIBufferCopy COIBufferCopyEx COIBufferCreate
    COIBufferCreateFromMemory COIBufferCreateSubBuffer COIBufferDestroy COIBufferGetSinkAddress
    COIBufferGetSinkAddressEx COIBufferMap COIBufferRead COIBufferReadMultiD COIBufferReleaseRef
    COIBufferReleaseRefcnt COIBufferSetState COIBufferUnmap COIBufferWrite COIBufferWriteEx
    COIBufferWriteMultiD
    COIEngineGetCount COIEngineGetHandle COIEngineGetHostname COIEngineGetIndex COIEngineGetInfo
    COIEventRegisterCallback COIEventRegisterUserEvent COIEventSignalUserEvent
    COIEventUnregisterUserEvent COIEventWait
    COINotificationCallbackSetContext COIRegisterNotificationCallback
    COIUnregisterNotificationCallback
    COIPerfGetCycleCounter COIPerfGetCycleFrequency
    COIPipelineClearCPUMask COIPipelineCreate COIPipelineDestroy COIPipelineGetEngine
    COIPipelineRunFunction COIPipelineSetCPUMask COIPipelineStartExecutingRunFunctions
    COIProcessConfigureDMA COIProcessCreateFromFile COIProcessCreateFromMemory COIProcessDestroy
    COIProcessGetFunctionHandles COIProcessLoadLibraryFromFile COIProcessLoadLibraryFromMemory
    COIProcessLoadSinkLibraryFromFile COIProcessProxyFlush COIProcessRegisterLibraries
    COIProcessSetCacheSize COIProcessUnloadLibrary COIProcessWaitForShutdown
    COIResultGetName
    COISysGetAPICID COISysGetCoreCount COISysGetCoreIndex COISysGetHardwareThreadCount
    COISysGetHardwareThreadIndex COISysGetL2CacheCount COISysGetL2CacheIndex
}

// Of two versions: the first is what a program gets that does not say which.
export!(@ COIProcessLoadLibraryFromFile2, "COIProcessLoadLibraryFromFile@COI_2.0");
export!(@ COIProcessLoadLibraryFromMemory2, "COIProcessLoadLibraryFromMemory@COI_2.0");
