//! A PCI function, served over vfio-user and reached through one trait.
//!
//! | module | side | what it is |
//! |---|---|---|
//! | [`config`] | device | configuration space: ids, BAR sizing, MSI-X |
//! | [`server`] | device | the vfio-user server; a device implements [`server::Function`] |
//! | [`host`] | host | [`host::HostDevice`]: what a driver needs of a device, however it is reached |
//! | [`vfio_user_client`] | host | that trait over vfio-user |
//! | [`vfio`] | host | that trait over VFIO, for a device of this machine |
//! | [`mapping`] | host | memory of a device, mapped |
//! | [`mic`] | host | the driver of the coprocessor card |
//!
//! What must stay true: each side takes the other for hostile. A message is bounded and checked
//! before it is acted upon; memory is mapped only from memfds that cannot shrink; a peer that dies
//! is an error at once for every caller, never a wait.
//!
//! The protocol is implemented here, and not taken from the `vfio_user` crate (0.1.7), because that
//! crate's client waits for ever for the rest of an error reply, does not look at the error flag,
//! asserts on the server's sizes and hides its socket, so that nobody can watch it for a hang-up;
//! and its server panics on a malformed VERSION, allocates whatever length the client names, and
//! answers a failed no-reply write.

pub mod config;
pub mod host;
pub mod mapping;
pub mod mic;

pub mod server;
mod socket;
pub mod vfio;
mod vfio_user;
pub mod vfio_user_client;
