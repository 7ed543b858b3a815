//! The Snapify-IO daemon on a card (paper section 6, figure 8).
//!
//! ```text
//!  program -- Unix socket --> program ----.             .---- files --> a file of this card
//!  of this card               (requester) '-- SCIF, RMA-'     (server)
//!                                    another node's daemon
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `program` | for each program of the card, a handler that is the requester |
//! | `files` | for each other node's request, a handler that has the card's file |
//! | `turns` | how many files are open at once |
//!
//! What must stay true: files that are open take no more of the card's memory than their turns say.

use std::{
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

use snaprig_offload_wire::snapify_io::Failure;
use snaprig_snapify_io_client::serve;

use self::program::OnCard;

mod files;
mod program;
mod turns;

pub use files::serve_nodes;

/// Serves programs of the card, for as long as there is the socket.
pub fn serve_programs(listener: &UnixListener) {
    for program in listener.incoming() {
        // A connection that is gone before it is taken is no reason to stop.
        let Ok(mut program) = program else { continue };
        thread::spawn(move || log(serve_program(&mut program)));
    }
}

fn serve_program(program: &mut UnixStream) -> Result<(), Failure> {
    serve::serve(program, OnCard::connect)
}

/// For the card's log.
fn log(served: Result<(), Failure>) {
    if let Err(failure) = served {
        eprintln!("snapify_iod: {failure}");
    }
}
