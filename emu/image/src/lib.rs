//! What images of every kind have in common: images of processes on the card, and images of processes of the host.
//!
//! An image is a stream of bytes that is written once, front to back, and read the same way, so that a file, a pipe or
//! a network may carry it. The grammar of that stream is known here, without I/O; what the records of an image say is
//! defined by each kind of image on top of it (`snaprig-card-image`, `snaprig-ckpt-image`). Where an image goes and where
//! it comes from is behind two traits, [`Sink`] and [`Source`], which lend the memory that it is in.
//!
//! ```text
//! image   := header  record*  end
//! header  := magic (8)  version (u32)  bytes of the payload (u32)  parent's id (u64)  checksum (u64)   payload
//! record  := kind (u32)  bytes of the payload (u32)  index (u64)  bytes of the body (u64)  checksum (u64)
//!            payload  body
//! end     := a record of kind END without a body; its payload:
//!            the image's id (u64)  id of the image that it stands for (u64)  totals (u64 each)
//! ```
//! Integers are little-endian; an id of 0 means that there is none. Header and records fill whole blocks of the
//! format's size, the rest of them zero, so that an image of pages can have its pages at block boundaries.
//!
//! A checksum is the XXH3 of payload and padding, seeded with the XXH3 of the 24 bytes before the checksum. So a
//! header or record that was flipped, moved, repeated or left out is noticed. The checksum does not cover a record's
//! body: the payload of a record with a body carries the checksums of the body's parts, so that a body can be skipped,
//! read straight into place, or checked by several threads.
//!
//! An image is named by its [`ImageId`], the XXH3 of the checksums of its header and of all its records but the end.
//! An image with a parent is an increment: it has what differs from that image. An image that is made of a chain of
//! increments stands for the last of them: what builds on the one may build on the other.
//!
//! | module | what it is |
//! |---|---|
//! | [`encode`] | from typed records to bytes |
//! | [`decode`] | from bytes, as they come, to typed records |
//! | [`inbox`] | holds what has come of a stream until the decoder can use it |
//! | [`sink`], [`memory`], [`pool`] | where an image goes, and the buffers that it is put into |
//! | [`source`] | where it comes from |
//! | [`transport`] | sinks and sources: files, whatever can be written or read, memory |
//!
//! What must stay true: a decoder believes nothing that it has not checked; a length is checked before anybody reads
//! or allocates by it; what a decoder accepts is canonical, so encoding it again gives the same bytes.

pub mod decode;
pub mod encode;
mod format;
mod id;
pub mod inbox;
pub mod memory;
pub mod pool;
pub mod sink;
pub mod source;
pub mod transport;

pub use self::{
    decode::Decoder,
    encode::Encoder,
    format::{END, End, Format, HEAD_BYTES, Head, PartError, hash},
    id::{ImageId, NoId},
    inbox::Inbox,
    memory::Memory,
    pool::{Buffer, Pool},
    sink::{Filled, Sink},
    source::Source,
};
