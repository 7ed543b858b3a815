//! The process that holds a rig for a campaign, so that it can be killed, stopped and limited
//! without harm to the campaign.
//!
//! ```text
//!  campaign                     this process
//!     |  <---- {"dir", "cards"} ---  the rig is there
//!     |  ------ N\n -------------->  card N's COI daemon is killed
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
    /// Its cards' processes, card 1 first.
    pub cards: Vec<u32>,
}

/// Holds a rig until the end of standard input.
pub fn run(cards: usize, memory_bytes: u64, platform: Option<Kind>) -> Result<ExitCode, AnyError> {
    // A campaign may limit how long this process's files get: that is to be an error of write(2)
    // (EFBIG), not the end.
    // SAFETY: no handler is installed, and no thread runs yet.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .cards(cards)
        .memory_bytes(memory_bytes)
        .platform(platform)
        .start()?;
    let place = Place {
        dir: rig.dir().to_owned(),
        cards: rig.cards().iter().map(snaprig_rig::Card::pid).collect(),
    };
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", serde_json::to_string(&place)?)?;
    stdout.flush()?;
    for line in std::io::stdin().lock().lines() {
        let node: usize = line?.trim().parse()?;
        if (1..=cards).contains(&node) {
            // A card that is dead already has no daemon.
            let _ = rig.card_mut(node - 1).kill_daemon();
        }
    }
    Ok(ExitCode::SUCCESS)
}
