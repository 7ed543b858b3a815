//! `libcoi_host.so.0`: the C interface of COI's source side, for programs that were written for real
//! cards.
//!
//! ```text
//!   program --C ABI--> exports --> engine, process, ... --> snaprig_coi --> cards of the rig
//!                                       |
//!                                       handles: what is a handle, and what of
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `exports` | every function under its name and version |
//! | `types`, `result` | C types, constants, codes |
//! | `arguments` | what a program's pointers and numbers stand for |
//! | `handles` | tables of handles |
//! | `strings` | what programs pass as strings, shown |
//! | `trace` | around every call: a line on standard error, and no panic gets out |
//! | `fork` | a child of fork(2) has no COI |
//! | `engine`, `process`, `library`, `notify`, `pipeline`, `buffer`, `transfer`, `arrays`, `event` | the functions, by header |
//! | `perf`, `sysinfo`, `sink` | those of `common/`, and those that are of use on a card only |
//! | `control` | Snapify from outside |
//! | `snapify` | Snapify for the program itself: what `libsnapify.so.0` calls |
//! | `elf`, `environment`, `memory` | of programs and libraries; of environment variables; of the caller's memory |
//!
//! The headers are in `include/`, and say what each function does and which code it gives when.
//!
//! What must stay true: whatever a program passes as a handle, it is looked up, never followed; null
//! pointers are codes; arguments are checked in the order in which MPSS's library checks them, before
//! anything is done; no panic leaves a function.

#![allow(clippy::missing_safety_doc)] // the headers are the contracts
#![allow(missing_docs)] // and the documentation
#![allow(non_snake_case)] // and have the names

mod arguments;
mod arrays;
mod buffer;
mod control;
mod elf;
mod engine;
mod environment;
mod event;
mod exports;
mod fork;
mod handles;
mod library;
mod memory;
mod notify;
mod perf;
mod pipeline;
mod process;
mod result;
mod sink;
mod snapify;
mod strings;
mod sysinfo;
mod trace;
mod transfer;
mod types;
