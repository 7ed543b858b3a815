//! Images of checkpointed processes: what one is on disk or on the wire ([`image`]), increments
//! ([`chain`]), the directory they are in ([`store`]), when the next is due
//! ([`interval`]), and what people are shown of one ([`inspect`]).
//!
//! Nothing here knows what a process is made of. An image carries state (whatever its writer
//! serializes) and pages of address spaces, which it knows by number.

pub mod chain;
pub mod image;
pub mod inspect;
pub mod interval;
pub mod store;
