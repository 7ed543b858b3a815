//! What most benchmarks are told.

use clap::Args;

/// How a benchmark that is repeated is run and printed.
#[derive(Args)]
pub struct Common {
    /// Print JSON, with every sample
    #[arg(long)]
    pub json: bool,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub runs: u16,
    /// Do this share of what is usual
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, hide = true)]
    pub scale: f64,
}

/// The same, of one that has many measures.
#[derive(Args)]
pub struct Chosen {
    /// How it is run and printed.
    #[command(flatten)]
    pub common: Common,
    /// Only measures whose name has this in it
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
}
