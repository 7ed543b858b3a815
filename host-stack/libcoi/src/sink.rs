//! What MPSS's library has on the host too, and is of use on a card only.

use crate::{
    result::{Failure, code},
    strings::Text,
    trace::api,
    types::Handle,
};

fn elsewhere() -> Failure {
    Failure::new(code::NOT_SUPPORTED, "a function for programs on a card")
}

api! {
    fn COIBufferAddRef(buffer: *mut u8) { Err(elsewhere()) }

    fn COIBufferReleaseRef(buffer: *mut u8) { Err(elsewhere()) }

    fn COIPipelineStartExecutingRunFunctions() { Err(elsewhere()) }

    fn COIProcessWaitForShutdown() { Err(elsewhere()) }

    fn COIProcessProxyFlush() { Err(elsewhere()) }

    fn COIProcessLoadSinkLibraryFromFile(
        file: Text,
        name: Text,
        search_path: Text,
        flags: u32,
        library_out: *mut Handle,
    ) {
        Err(elsewhere())
    }
}
