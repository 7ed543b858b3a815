//! `snaprig sdk`: where the files are that programs are given.

use std::{fs, os::unix::ffi::OsStrExt, path::PathBuf, process::ExitCode};

use clap::Args;
use snaprig_fabric::library;
use snaprig_rig::sdk;
use snaprig_sdk::{Contents, Library, Tree};

use crate::{AnyError, mpss};

/// Of which program the files are that a package has put somewhere.
const ID: &str = "ID";

/// Print where libraries and headers for programs are
///
/// Below it are include, lib (SCIF, COI, plugins of checkpoints) and verbs (libibverbs.so.1).
#[derive(Args)]
pub struct Options {
    /// Put them into this directory
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Put what projects for Xeon Phi look for into this directory, as an installation of MPSS has it: include, lib64 with
    /// pkgconfig, and bin with icc, x86_64-k1om-linux-gcc and their like
    #[arg(long, value_name = "DIR", conflicts_with = "to")]
    mpss: Option<PathBuf>,
}

/// Makes them, if they are not there.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let root = match (&options.mpss, &options.to) {
        (Some(directory), _) => mpss::put(directory, carried(&sdk::LIBRARIES)?)?,
        (None, Some(directory)) => {
            let tree = tree()?;
            tree.put(directory)?;
            fs::write(directory.join(ID), tree.id())?;
            directory.canonicalize()?
        }
        (None, None) => {
            let tree = tree()?;
            match installed(&tree) {
                Some(root) => root,
                None => tree.lay_out()?,
            }
        }
    };
    let mut line = root.as_os_str().as_bytes().to_vec();
    line.push(b'\n');
    std::io::Write::write_all(&mut std::io::stdout(), &line)?;
    Ok(ExitCode::SUCCESS)
}

/// All that this program carries.
fn tree() -> Result<Tree, AnyError> {
    let mut tree = sdk::tree(carried(&sdk::LIBRARIES)?);
    tree.extend(library::tree(carried(&library::LIBRARIES)?));
    Ok(tree)
}

fn carried(libraries: &[Library]) -> Result<Vec<Contents>, AnyError> {
    let carried = libraries.iter().map(|library| {
        let bytes = snaprig_carried::library(library.stem);
        let missing = || format!("this program carries no {}", library.name);
        Ok(Contents::Library(bytes.ok_or_else(missing)?))
    });
    carried.collect()
}

/// Where a package has put them, beside this very program.
fn installed(tree: &Tree) -> Option<PathBuf> {
    let root = std::env::current_exe()
        .ok()?
        .parent()?
        .join("../lib/snaprig");
    let is_ours =
        fs::read_to_string(root.join(ID)).is_ok_and(|id| id == tree.id()) && tree.is_in(&root);
    is_ours.then(|| root.canonicalize().ok()).flatten()
}
