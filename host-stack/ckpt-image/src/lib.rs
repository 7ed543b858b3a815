//! Images of checkpointed processes: what one is on disk or on the wire ([`image`]), increments
//! ([`chain`]), and when the next is due ([`interval`]).
//!
//! Nothing here knows what a process is made of. An image carries state (whatever its writer
//! serializes) and pages of address spaces, which it knows by number.

pub mod chain;
pub mod image;
pub mod interval;
