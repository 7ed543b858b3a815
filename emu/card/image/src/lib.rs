//! Images of processes on the card: the part that BLCR's kernel module plays in the paper (section 4.1, Capture, and
//! section 4.3).
//!
//! | module | what it is |
//! |---|---|
//! | [`stream`] | what an image says, on top of the grammar of all images ([`snaprig_image`]) |
//! | [`writer`] | an image on its way to a sink |
//! | [`chain`] | a whole image and the increments on top of it, as one whole image |

pub mod chain;
pub mod stream;
pub mod writer;
