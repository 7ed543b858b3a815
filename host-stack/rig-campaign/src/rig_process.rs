//! The process that holds a rig for a campaign or a demo, so that it can be killed, stopped and limited
//! without harm to those.
//!
//! ```text
//!  campaign, demo               this process
//!     |  <---- {"dir", "cards"} ---  the rig is there
//!     |  ------ daemon N\n ------->  card N's COI daemon is killed
//!     |  ------ reset N\n -------->  card N is reset
//!     |  <---- {"dir", "cards"} ---  it is back, or is not
//!     |  ------ end of input ----->  the rig is taken down, the process ends
//! ```

use std::{
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};
use snaprig_card_platform::Kind;
use snaprig_rig::Rig;

use crate::{Error, deadline::Deadline};

/// Where a rig is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Place {
    /// Its directory.
    pub dir: PathBuf,
    /// Its cards' processes, card 1 first; 0 for none.
    pub cards: Vec<u32>,
}

/// Holds a rig until the end of standard input.
pub fn run(cards: usize, memory_bytes: &[u64], platform: Option<Kind>) -> Result<(), Error> {
    // A campaign may limit how long this process's files get: that is to be an error of write(2)
    // (EFBIG), not the end.
    // SAFETY: SIG_IGN is no handler, so no code of this program runs at a signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .cards(cards)
        .memory_bytes_each(memory_bytes)
        .platform(platform)
        .start()?;
    say_place(&rig)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let order = line.split_once(' ');
        let order = order.and_then(|(order, node)| Some((order, node.parse::<usize>().ok()?)));
        let Some((order, node)) = order else {
            return Err(Error::Order(line));
        };
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
            _ => return Err(Error::Order(line)),
        }
    }
    Ok(())
}

fn say_place(rig: &Rig) -> Result<(), Error> {
    let place = Place {
        dir: rig.dir().to_owned(),
        cards: rig
            .cards()
            .iter()
            .map(|card| card.pid().unwrap_or(0))
            .collect(),
    };
    let mut stdout = io::stdout();
    let place = serde_json::to_string(&place).map_err(io::Error::from)?;
    writeln!(stdout, "{place}")?;
    Ok(stdout.flush()?)
}

/// The process that holds the rig, as those see it who have started it.
pub struct RigProcess {
    /// The process.
    pub child: Child,
    /// Its standard input, for orders.
    pub input: Option<ChildStdin>,
    /// Its standard output, where it says its place.
    pub output: Option<BufReader<ChildStdout>>,
    /// Where the rig is, as it was last said.
    pub place: Place,
}

impl RigProcess {
    /// Starts it, with this standard error; the rig's own directory is made in `within`, if that is given.
    pub fn start(
        cards: u16,
        memory_bytes: &[u64],
        platform: Option<Kind>,
        log: Stdio,
        within: Option<&Path>,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let memory: Vec<_> = memory_bytes.iter().map(u64::to_string).collect();
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("rig-process")
            .args(["--cards", &cards.to_string()])
            .args(["--memory", &memory.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(platform) = platform {
            command.args(["--platform", &platform.to_string()]);
        }
        if let Some(directory) = within {
            command.env("TMPDIR", directory);
        }
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().expect("it is piped");
        let place = Place {
            dir: PathBuf::new(),
            cards: Vec::new(),
        };
        // From here on it is ended whatever happens.
        let mut rig = Self {
            child,
            input,
            output: None,
            place,
        };
        deadline.wait_for("boot", &output)?;
        let mut line = String::new();
        let output = rig.output.insert(BufReader::new(output));
        output.read_line(&mut line)?;
        rig.place = serde_json::from_str(&line).map_err(|_| Error::RigStart)?;
        Ok(rig)
    }

    /// Ends it, as whoever started it does, and says what of it is still there.
    pub fn end(mut self, deadline: Deadline) -> Result<Vec<String>, Error> {
        drop(self.input.take());
        let rig = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        deadline.wait_for("the rig's end", &rig)?;
        self.child.wait()?;
        let mut left = Vec::new();
        for (index, pid) in self.place.cards.iter().enumerate() {
            // One that is gone has no descriptor.
            if let Some(pid) = Pid::from_raw(*pid as i32)
                && let Ok(card) = pidfd_open(pid, PidfdFlags::empty())
                && deadline.wait_for("a card's end", &card).is_err()
            {
                left.push(format!("card {}, process {pid:?},", index + 1));
            }
        }
        Ok(left)
    }
}

impl Drop for RigProcess {
    fn drop(&mut self) {
        // It has ended already, or whoever started it gives up; its cards end with it.
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
