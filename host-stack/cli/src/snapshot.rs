//! `snaprig snapshot verify`: every byte of a snapshot, as restore does it.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde::Serialize;
use snaprig_snapify_io::store;

use crate::{AnyError, size};

/// What `snapshot verify` is told.
#[derive(Args)]
pub struct Options {
    /// The snapshot (what `demo --keep DIR` leaves in DIR/snapshot)
    #[arg(value_name = "DIR")]
    snapshot: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    program: String,
    card: u16,
    files: Vec<File>,
}

#[derive(Serialize)]
struct File {
    name: String,
    bytes: u64,
    digest: String,
}

/// Verifies the snapshot; the first damage found is an error.
pub fn verify(options: &Options) -> Result<ExitCode, AnyError> {
    let manifest = store::open(&options.snapshot)?;
    let files = manifest.files().map(|(name, bytes)| File {
        digest: manifest.digests.get(&name).cloned().unwrap_or_default(),
        name,
        bytes,
    });
    let report = Report {
        files: files.collect(),
        program: manifest.program.clone(),
        card: manifest.node,
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", text(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

fn text(report: &Report) -> String {
    let lines = report.files.iter().map(|file| {
        let bytes = size::show(file.bytes);
        format!("  {:<40} {bytes:>9}  {}\n", file.name, file.digest)
    });
    let total: u64 = report.files.iter().map(|file| file.bytes).sum();
    lines.collect::<String>()
        + &format!(
            "whole: {} of card {}, {} files, {}\n",
            report.program,
            report.card,
            report.files.len(),
            size::show(total)
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_fits_eighty_columns() {
        let file = |name: &str, bytes| File {
            name: name.into(),
            bytes,
            digest: "0123456789abcdef".into(),
        };
        let report = Report {
            program: "kmeans".into(),
            card: 1,
            files: vec![
                file("local_store/1", 136 << 10),
                file("offload_process.img", 3 << 20),
            ],
        };
        insta::assert_snapshot!(text(&report), @r"
          local_store/1                            136.0 KiB  0123456789abcdef
          offload_process.img                        3.0 MiB  0123456789abcdef
        whole: kmeans of card 1, 2 files, 3.1 MiB
        ");
    }
}
