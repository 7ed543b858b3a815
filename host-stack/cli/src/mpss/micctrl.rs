//! `micctrl`: in what state the cards of a rig are, and what becomes of them.

use std::{path::Path, process::ExitCode, thread, time::Duration};

use clap::{ArgGroup, Args};
use snaprig_mpss as mpss;
use snaprig_rig::{
    CardState::{self, Booting, Offline, Online, Resetting, ShuttingDown},
    control::{self, Action},
};

use crate::{AnyError, cards::RunningRig};

/// How often to look whether a card has come to rest that somebody else changes.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Say in what state cards of a running rig are, or change it, as MPSS's micctrl does
#[derive(Args)]
#[command(group = ArgGroup::new("action"))]
pub struct Options {
    #[command(flatten)]
    rig: RunningRig,
    /// Say in what state they are
    #[arg(short, long, group = "action")]
    status: bool,
    /// Reset them: they lose everything, and are ready to be booted
    #[arg(short, long, group = "action")]
    reset: bool,
    /// Boot those that are ready
    #[arg(short, long, group = "action")]
    boot: bool,
    /// Reset and boot them
    #[arg(short = 'R', long, group = "action")]
    reboot: bool,
    /// Shut them down in order
    #[arg(short = 'S', long, group = "action")]
    shutdown: bool,
    /// Wait until none is booting, shutting down or being reset
    #[arg(short, long)]
    wait: bool,
    /// Reset them whatever they do, as is done anyway
    #[arg(short, long)]
    force: bool,
    /// mic0, mic1, ... [default: all]
    #[arg(value_name = "CARD", value_parser = card)]
    cards: Vec<u16>,
}

fn card(name: &str) -> Result<u16, String> {
    mpss::number(name).ok_or_else(|| "cards are mic0, mic1, ...".into())
}

/// Does it to each, and says how it went.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let rig = options.rig.directory()?;
    // Who runs no rig, and names a card that it has not, hears so first.
    let there = options.rig.cards()?;
    let nodes: Vec<u16> = match options.cards[..] {
        [] => there.keys().copied().collect(),
        ref numbers => numbers.iter().map(|number| number + 1).collect(),
    };
    let mut code = ExitCode::SUCCESS;
    // All at once, as cards boot.
    let outcomes: Vec<Result<CardState, AnyError>> = thread::scope(|scope| {
        let started: Vec<_> = nodes
            .iter()
            .map(|node| scope.spawn(|| options.on(&rig, *node)))
            .collect();
        let ended = started.into_iter().map(|thread| {
            let panicked = |_| Err("a bug: it panicked".into());
            thread.join().unwrap_or_else(panicked)
        });
        ended.collect()
    });
    for (node, outcome) in nodes.iter().zip(outcomes) {
        let name = mpss::Name(node - 1);
        match outcome {
            Ok(Online) => println!("{name}: online (mode: linux image: {})", mpss::KERNEL),
            Ok(state) => println!("{name}: {}", mpss::state(state)),
            Err(error) => {
                eprintln!("[Error] {name}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

impl Options {
    /// In what state the card is when what was asked is done.
    fn on(&self, rig: &Path, node: u16) -> Result<CardState, AnyError> {
        let state = self.state(node)?;
        if let Some(action) = self.action(state) {
            control::ask(rig, action, node)?;
        }
        loop {
            let state = self.state(node)?;
            if !self.wait || !matches!(state, Booting | ShuttingDown | Resetting) {
                return Ok(state);
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    fn state(&self, node: u16) -> Result<CardState, AnyError> {
        let state = self.rig.cards()?.get(&node).copied();
        state.ok_or_else(|| "no such card".into())
    }

    /// A card that is `ready` is one that the rig has taken out of its slot.
    fn action(&self, state: CardState) -> Option<Action> {
        match state {
            _ if self.reset => Some(Action::Unplug),
            _ if self.boot => Some(Action::Plug),
            Offline if self.reboot => Some(Action::Plug),
            _ if self.reboot => Some(Action::Reset),
            _ if self.shutdown => Some(Action::ShutDown),
            _ => None,
        }
    }
}
