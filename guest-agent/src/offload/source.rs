//! The source's C API, which MPSS's library has on cards too. A runtime that is one library for hosts and cards
//! (StarPU's is) finds all that it calls here, and hears that a card has no engines of its own.

use snaprig_offload_wire::coi_result::code;

/// Functions that take their arguments, whatever these are, for nothing: the caller has them in registers and on its
/// own stack.
macro_rules! elsewhere {
    ($($name:ident)*) => {$(
        /// A function for programs of the host.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> u32 {
            code::NOT_SUPPORTED
        }
    )*};
}

elsewhere! {
    COIBufferAddRefcnt COIBufferCopy COIBufferCopyEx COIBufferCreate COIBufferCreateFromMemory
    COIBufferCreateSubBuffer COIBufferDestroy COIBufferGetSinkAddress COIBufferGetSinkAddressEx
    COIBufferMap COIBufferRead COIBufferReadMultiD COIBufferReleaseRefcnt COIBufferSetState
    COIBufferUnmap COIBufferWrite COIBufferWriteEx COIBufferWriteMultiD
    COIEngineGetCount COIEngineGetHandle COIEngineGetHostname COIEngineGetInfo
    COIEventRegisterCallback COIEventRegisterUserEvent COIEventUnregisterUserEvent COIEventWait
    COINotificationCallbackSetContext COIRegisterNotificationCallback
    COIUnregisterNotificationCallback
    COIPipelineClearCPUMask COIPipelineCreate COIPipelineDestroy COIPipelineGetEngine
    COIPipelineRunFunction COIPipelineSetCPUMask
    COIProcessConfigureDMA COIProcessCreateFromFile COIProcessCreateFromMemory COIProcessDestroy
    COIProcessGetFunctionHandles COIProcessLoadLibraryFromFile COIProcessLoadLibraryFromMemory
    COIProcessRegisterLibraries COIProcessSetCacheSize COIProcessUnloadLibrary
}
