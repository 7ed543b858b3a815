//! How processes were treated, for people and machines.

use serde::Serialize;

use super::policy::{Account, Who, jain};

/// What has become of a process.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its host process.
    pub host_pid: u32,
    /// Its number in that.
    pub process: u64,
    /// Its program.
    pub name: String,
    /// The card that it is on.
    pub card: Option<u16>,
    /// It has ended, or is no concern of the arbiter's any more.
    pub has_ended: bool,
    /// How long something of the program waited for it, in milliseconds.
    pub wanted_ms: u64,
    /// How long of that it was on a card, and ran.
    pub served_ms: u64,
    /// How long it was on a card.
    pub resident_ms: u64,
    /// How long it was on its way.
    pub swapping_ms: u64,
    /// How often it left.
    pub swaps_out: u64,
    /// How often it came back.
    pub swaps_in: u64,
    /// Swaps that failed.
    pub failed: u64,
    /// What part of the time in which it was wanted it was served.
    pub share: f64,
}

impl Row {
    pub(super) fn new(who: Who, name: &str, card: Option<u16>, account: &Account) -> Self {
        Self {
            host_pid: who.host,
            process: who.process,
            name: name.to_owned(),
            card,
            has_ended: false,
            wanted_ms: account.wanted.as_millis() as u64,
            served_ms: account.served.as_millis() as u64,
            resident_ms: account.resident.as_millis() as u64,
            swapping_ms: account.swapping.as_millis() as u64,
            swaps_out: account.swaps_out,
            swaps_in: account.swaps_in,
            failed: account.failed,
            share: account.share(),
        }
    }

    pub(super) fn ended(self) -> Self {
        Self {
            card: None,
            has_ended: true,
            ..self
        }
    }
}

/// How all of them were treated.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Each of them; those that have ended first.
    pub processes: Vec<Row>,
    /// Jain's index of the shares of those that were wanted: 1 is fair.
    pub fairness: f64,
    /// What part of the time of processes on cards and on their way went into swaps.
    pub swapping: f64,
}

impl Report {
    pub(super) fn of(processes: Vec<Row>) -> Self {
        let wanted = processes.iter().filter(|row| row.wanted_ms > 0);
        let sum = |of: fn(&Row) -> u64| processes.iter().map(of).sum::<u64>() as f64;
        let swapping = sum(|row| row.swapping_ms);
        let all = swapping + sum(|row| row.resident_ms);
        Self {
            fairness: jain(wanted.map(|row| row.share)),
            swapping: if all > 0.0 { swapping / all } else { 0.0 },
            processes,
        }
    }
}
