//! `libmicmgmt.so.0`: what programs ask of cards that manage them. The contract is the header, `include/miclib.h`.
//!
//! ```text
//!   mic_get_devices, mic_open_device      which cards there are (snaprig-mpss)
//!   mic_get_X_info -> an object           what was known of the card then
//!   mic_get_Y(object, place)              a value of it
//! ```
//!
//! What must stay true: nothing is kept here but what a program was given and gives back; what nobody knows of a card of a
//! rig (sensors, flash, power) is E_MIC_NOT_IMPLEMENTED, and is not made up.

#![allow(missing_docs)]
#![allow(clippy::missing_safety_doc)]

mod absent;
mod call;
mod device;
mod info;

use snaprig_versioned::export;

use crate::{absent::*, call::*, device::*, info::*};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
