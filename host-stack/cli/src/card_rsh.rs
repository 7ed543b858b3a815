//! `snaprig card rsh`: what rsh(1) is to another machine, for launchers that start their programs by it.

use std::{env, process::ExitCode, sync::Arc};

use clap::Args;
use snaprig_coi::libraries::File;
use snaprig_rig::network::{card_address, name_of};

use crate::{AnyError, card_exec::Job, cards::RunningRig};

/// What of our environment a program finds there, as a login would have it.
const KEPT: [&str; 3] = ["PATH", "HOME", "USER"];
/// What a launcher's part on a card finds where it looks for this program, as it does though it starts nothing on others
/// (Open MPI's orted).
const STAND_IN: &str =
    "#!/bin/sh\necho 'snaprig: programs on cards start none on others' >&2\nexit 1\n";
/// Most cards of a rig.
const CARDS_MAX: u16 = 8;

/// What `card rsh` is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    rig: RunningRig,
    /// The card: its name (mic0 is card 1), or its address (172.31.1.1)
    #[arg(value_name = "CARD")]
    host: String,
    /// Words for a shell there, which comes along. Programs that it starts are on the card already (`snaprig run --files`)
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORDS"
    )]
    words: Vec<String>,
}

/// Runs the words, and takes over their exit status.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let host = &options.host;
    let node = node_of(host);
    let node = node.ok_or_else(|| format!("{host} is no card: they are mic0 and up"))?;
    let kept = env::vars().filter(|(name, _)| KEPT.contains(&name.as_str()));
    let job = Job {
        node,
        command: ["sh", "-c", &options.words.join(" ")]
            .map(str::to_owned)
            .into(),
        variables: kept.collect(),
        library_path: None,
        files: stand_ins()?,
    };
    job.run(&options.rig)
}

/// By name, and by path.
fn stand_ins() -> Result<Vec<File>, AnyError> {
    let own = env::current_exe()?;
    let own = own.to_str().ok_or("the path of snaprig is not UTF-8")?;
    let stand_in = |path: &str| File {
        path: path.into(),
        bytes: Arc::new(STAND_IN.into()),
    };
    Ok(["/bin/snaprig", own].map(stand_in).into())
}

fn node_of(host: &str) -> Option<u16> {
    (1..=CARDS_MAX).find(|node| name_of(*node) == host || card_address(*node).to_string() == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_name_and_address() {
        assert_eq!(node_of("mic0"), Some(1));
        assert_eq!(node_of("172.31.1.2"), Some(2));
        for other in ["mic8", "mic", "card1", "172.31.1.254"] {
            assert_eq!(node_of(other), None, "{other}");
        }
    }
}
