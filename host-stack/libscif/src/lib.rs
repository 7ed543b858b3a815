//! `libscif.so.0`: SCIF for C programs, the same library on the host and on a card.
//!
//! ```text
//!                 on a card                         on the host
//!   program --C ABI--> ffi --+--> card: ioctls        +--> host: a socket to the rig's node
//!                            |    on /dev/mic/scif    |    memory: copies between mapped windows
//!                            '------------------------'
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `ffi` | the C functions of scif.h |
//! | `exports` | their names and versions |
//! | `card` | the ioctls of the card's driver |
//! | `host` | endpoints of the rig that `SNAPRIG_RIG` names |
//!
//! What must stay true: an endpoint descriptor is a file descriptor that poll(2) understands; a bad
//! address of the program's is EFAULT, not its end.

mod card;
mod exports;
mod ffi;
mod host;
