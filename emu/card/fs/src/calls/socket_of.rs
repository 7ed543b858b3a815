//! The socket that a call works on.

use std::sync::Arc;

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use crate::{call::FsCall, files::socket::Socket, table::Open};

/// Runs `f` with a socket.
pub fn with(
    call: &mut FsCall,
    fd: i32,
    f: impl FnOnce(&mut FsCall, &Socket) -> SysResult,
) -> SysResult {
    let open = call.files.get(fd)?;
    call.cx.nonblock = open.nonblock();
    let socket = open
        .file
        .as_any()
        .downcast_ref::<Socket>()
        .ok_or(Errno::ENOTSOCK)?;
    f(call, socket)
}

pub fn open_of(socket: Arc<Socket>, kind: i32) -> Arc<Open> {
    Open::new(socket, libc::O_RDWR | kind & libc::SOCK_NONBLOCK)
}
