//! The process that holds a rig for a campaign, so that it can be killed, stopped and limited
//! without harm to the campaign.
//!
//! ```text
//!  campaign                     this process
//!     |  <---- {"dir", "cards"} ---  the rig is there
//!     |  ------ daemon N\n ------->  card N's COI daemon is killed
//!     |  ------ reset N\n -------->  card N is reset
//!     |  <---- {"dir", "cards"} ---  it is back, or is not
//!     |  ------ end of input ----->  the rig is taken down, the process ends
//! ```

use std::{
    io::{BufRead, Write},
    path::PathBuf,
    process::ExitCode,
};

use serde::{Deserialize, Serialize};
use snaprig_card::platform::Kind;
use snaprig_rig::Rig;

use crate::AnyError;

/// Where a rig is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Place {
    /// Its directory.
    pub dir: PathBuf,
    /// Its cards' processes, card 1 first; 0 for none.
    pub cards: Vec<u32>,
}

/// Holds a rig until the end of standard input.
pub fn run(cards: usize, memory_bytes: u64, platform: Option<Kind>) -> Result<ExitCode, AnyError> {
    // A campaign may limit how long this process's files get: that is to be an error of write(2)
    // (EFBIG), not the end.
    // SAFETY: no handler is installed, and no thread runs yet.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .cards(cards)
        .memory_bytes(memory_bytes)
        .platform(platform)
        .start()?;
    say_place(&rig)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (order, node) = line
            .split_once(' ')
            .ok_or("an order is a word and a number")?;
        let node: usize = node.parse()?;
        if !(1..=cards).contains(&node) {
            continue;
        }
        match order {
            // A card that is dead already has no daemon.
            "daemon" => drop(rig.card(node - 1).kill_daemon()),
            "reset" => {
                if let Err(error) = rig.card(node - 1).reset() {
                    tracing::warn!(%error, node, "a reset failed");
                }
                say_place(&rig)?;
            }
            _ => return Err(format!("there is no order {order:?}").into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn say_place(rig: &Rig) -> Result<(), AnyError> {
    let place = Place {
        dir: rig.dir().to_owned(),
        cards: rig
            .cards()
            .iter()
            .map(|card| card.pid().unwrap_or(0))
            .collect(),
    };
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", serde_json::to_string(&place)?)?;
    Ok(stdout.flush()?)
}
