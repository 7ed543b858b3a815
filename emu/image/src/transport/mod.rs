//! Ways that images take. Each is a [`Sink`](crate::Sink), a [`Source`](crate::Source), or both.
//!
//! | type | is | of |
//! |---|---|---|
//! | any [`Write`](std::io::Write) | a sink | pipes, sockets, memory |
//! | [`Reading`] | a source | anything that can be read |
//! | `&[u8]` | a source | memory, of which it lends parts |
//! | [`Outbox`] | a sink | memory, for drivers that may be interrupted |
//! | [`FileSink`], [`FileSource`] | both | a file: past the page cache where that can be |

mod file;
mod memory;
mod reading;

pub use self::{
    file::{Direct, FileSink, FileSource},
    memory::Outbox,
    reading::Reading,
};
