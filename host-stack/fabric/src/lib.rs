//! A fabric of HCAs, from outside: where it is, how it is started, what is said to its control
//! daemon, and how programs are put into it.
//!
//! ```no_run
//! use snaprig_fabric::{Fabric, Model};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = Fabric::builder().hcas(2).model(Model::B).loss_per_mille(50).start()?;
//! let mut server = fabric.command("ib_send_bw").args(["-d", "snaprig_0"]).spawn()?;
//! // ... a client on snaprig_1; and then:
//! fabric.link_down(1, 1)?;
//! assert!(!server.wait()?.success());
//! # Ok(()) }
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`Fabric`] | a fabric of one's own, and programs in it |
//! | [`Operator`] | looks at a fabric that runs, breaks it, heals it |
//! | [`description`] | what it is and does, as a value and as text |
//! | [`faults`] | what can be wrong with it |
//! | [`node`] | a node: some of the HCAs, a name, an address, a place for files |
//! | [`nodes`] | several of them, and launchers that start programs on them |
//! | [`place`] | where a fabric's socket and files are |
//! | [`tcp`] | nodes that share nothing but TCP |
//! | [`start`] | the control daemon is started by its first user |
//! | [`protocol`], [`socket`] | what is said to it, and how |
//! | [`library`] | the `libibverbs.so.1` that programs are given |
//!
//! Nothing of libibverbs is in here: a program in Rust that has this crate and links a libibverbs
//! keeps that one.

pub mod description;
mod fabric;
pub mod faults;
pub mod library;
pub mod node;
pub mod nodes;
mod operator;
pub mod place;
pub mod protocol;
pub mod socket;
pub mod start;
pub mod tcp;

pub use description::Description;
pub use fabric::{Fabric, FabricBuilder, FabricError, NodeOf};
pub use faults::{FaultRequest, PathFaults};
pub use node::Node;
pub use nodes::Nodes;
pub use operator::Operator;
pub use snaprig_hca::model::ModelName as Model;
pub use tcp::Tcp;
