//! Benchmarks: what of this is how fast, beside what a user would take instead, on the same machine in the same run.
//!
//! A benchmark is a folder in [`benches`] and a line in its list. It says what the command line calls it, what it is told
//! there, and what it does:
//!
//! ```
//! use std::process::ExitCode;
//! use snaprig_bench::{AnyError, BenchWith};
//!
//! /// What it is told.
//! #[derive(clap::Args)]
//! pub struct Options {
//!     /// How often it is measured
//!     #[arg(long, default_value_t = 5)]
//!     runs: u16,
//! }
//!
//! pub static BENCH: BenchWith<Options> = BenchWith::new("mine", "What I want to know", run);
//!
//! fn run(options: &Options) -> Result<ExitCode, AnyError> {
//!     println!("{} runs", options.runs);
//!     Ok(ExitCode::SUCCESS)
//! }
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`benches`] | the benchmarks, and the list of them |
//! | [`choice`] | one of them, chosen on a command line |
//! | [`options`] | what most of them are told |
//! | [`table`] | rows with their spread, ratios and aims, for people and as JSON |
//! | [`baselines`], [`host`] | what is measured beside |
//! | [`compile`] | programs that are compiled to be measured |

pub mod baselines;
pub mod benches;
pub mod choice;
pub mod compile;
pub mod host;
pub mod options;
mod progress;
pub mod report;
pub mod table;

pub use self::choice::{Bench, BenchWith, Choice};

/// An error on its way to the user.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;
