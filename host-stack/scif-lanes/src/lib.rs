//! SCIF messages that go by memory, past the nodes: what both ends of a connection do, on the host and on a card.
//!
//! | module | what it is |
//! |---|---|
//! | [`lanes`] | the memory: a ring for each direction, and who is told when |
//! | [`end`] | sending and receiving: look, spin, sleep |
//! | [`host`], [`card`] | an end that is a program of the host, or of a card |
//! | [`shared`] | memory that several processes have mapped |
//!
//! What must stay true: whoever has the other end may write anything into the memory at any time.

pub mod card;
pub mod end;
pub mod host;
pub mod lanes;
pub mod shared;
