//! What programs call: each function under its name and version, as MPSS's library has them.

use snaprig_versioned::export;

use crate::{
    buffer::*, engine::*, event::*, library::*, notify::*, perf::*, pipeline::*, process::*,
    result::COIResultGetName, sink::*, snapify::*, sysinfo::*, transfer::*,
};

macro_rules! exports {
    ($($function:ident)*) => {$(
        export!($function, concat!(stringify!($function), "@@COI_1.0"));
    )*};
}

exports! {
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
export!(
    COIProcessLoadLibraryFromFile2,
    "COIProcessLoadLibraryFromFile@COI_2.0"
);
export!(
    COIProcessLoadLibraryFromMemory2,
    "COIProcessLoadLibraryFromMemory@COI_2.0"
);

// For libsnapify.so.0 alone, which has them under a version of its own: programs are not linked with these.
macro_rules! private {
    ($($function:ident)*) => {$(
        export!($function, concat!(stringify!($function), "@SNAPRIG_PRIVATE"));
    )*};
}

private! { snapify_copy snapify_pause snapify_capture snapify_wait snapify_resume snapify_restore snapify_result }
