//! What comes of a run.

use snaprig_scenario::scenario::Ending;

/// What came of one application.
#[derive(Debug)]
pub struct App {
    /// How it ended.
    pub ending: Ending,
    /// Whether its process was lost, and nothing could bring it back.
    pub lost: bool,
    /// Results of run functions, by pipeline, in the order in which they were asked for.
    pub results: Vec<Vec<Option<u64>>>,
    /// What it waits for, if it does.
    pub waiting: Option<String>,
    /// What is wrong with its snapshot on the disk; `None`: it is whole, or not there.
    pub snapshot: Option<String>,
    /// Calls that were told of an error, in its own words.
    pub errors: Vec<String>,
}

/// What there is to know of a run's end.
#[derive(Debug, Default)]
pub struct Ended {
    /// Every application.
    pub apps: Vec<App>,
}
