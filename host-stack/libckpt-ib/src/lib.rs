//! A library that stands between a program and its libibverbs, whoever made that, and makes queue pairs a part of checkpoints:
//! `snaprig ckpt launch --verbs` preloads it.
//!
//! ```text
//!   program     ibv_context  ibv_qp  ibv_cq ...   ours: what the program has pointers to, with names that stay
//!      |             |          |       |
//!      |         [`objects`]: each knows what it stands for, and how it was made
//!      |             |          |       |
//!   libibverbs  ibv_context  ibv_qp  ibv_cq ...   another one after each restart
//! ```
//!
//! The rules are those of `snaprig_ckpt_ib`, whose machines this library drives (shadow structs are principle 1 of the paper's
//! section 3.1).
//!
//! | module | what it is |
//! |---|---|
//! | `real` | the libibverbs below |
//! | `loader` | dlopen(3) and dlsym(3), for programs that find it by themselves |
//! | `objects`, `state` | what the program has, and all of it |
//! | `device`, `memory`, `domains`, `windows`, `cq`, `qp`, `srq`, `xrc`, `address` | the functions that make and change it |
//! | `post`, `extended`, `copies` | requests; the same in the extended way; inline data that is too much for the HCA below |
//! | `event` | descriptors that stay, for events of what does not |
//! | `cm` | the connection manager's device |
//! | `below` | the libibverbs below, as the machines need it |
//! | `plugin`, `board`, `rebuild`, `owned` | phases of checkpoints and restarts |
//! | `follow` | others move, and what leads to them follows |
//!
//! All is behind one lock, which a checkpoint has from quiesce to resume or go: a program that posts or polls meanwhile waits.
//! Nobody waits for anything while he has it, but for answers of the libibverbs below.
//!
//! What must stay true: what the program was given pointers and numbers of stays good, whatever is below; a pointer that did not
//! come from here (libraries of libibverbs call each other by these names, too) is left to the libibverbs below.

#![allow(clippy::missing_safety_doc)] // the manual pages are the contracts
#![allow(missing_docs)] // and the documentation of the functions

#[macro_use]
mod real;

mod address;
mod below;
mod board;
mod cm;
mod copies;
mod cq;
mod device;
mod domains;
mod event;
mod extended;
mod follow;
mod loader;
mod memory;
mod objects;
mod owned;
mod plugin;
mod post;
mod qp;
mod rebuild;
mod room;
mod srq;
mod state;
mod windows;
mod xrc;
