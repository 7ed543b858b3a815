//! The process that is a supervisor, for who is told what to do by a program rather than by a person.

use std::{error::Error, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Event, Mode, Options, Reporter, launch, restart};

/// The command by which a `snaprig` program becomes a supervisor. Its argument is a [`Task`], as JSON.
pub const PROCESS: &str = "ckpt-process";

/// What it is to supervise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Where its checkpoints are.
    pub directory: PathBuf,
    /// What a checkpoint has, and when that is copied.
    pub mode: Mode,
    /// The program.
    pub what: What,
}

/// A program that is new, or one that was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    /// It is launched.
    Launch {
        /// Its name, and its arguments.
        words: Vec<String>,
    },
    /// It is restarted.
    Restart {
        /// From this checkpoint, or the newest complete one.
        round: Option<u64>,
    },
}

/// What [`PROCESS`] does: the program's exit status. The calling process has one thread.
pub fn main(task: &str) -> Result<i32, Box<dyn Error + Send + Sync>> {
    let Task {
        directory,
        mode,
        what,
    } = serde_json::from_str(task).map_err(|error| format!("{PROCESS}: {error}"))?;
    let options = Options {
        mode,
        reporter: Reporter::to(|event: &Event| eprintln!("snaprig: {event}")),
        ..Options::default()
    };
    Ok(match what {
        What::Launch { words } => {
            let words: Vec<_> = words.into_iter().map(Into::into).collect();
            launch(&directory, &words[..], &options)?
        }
        What::Restart { round } => restart(&directory, round, &options)?,
    })
}
