//! What has become of a tree that was on its way when its supervisor died: the target knows.

use std::{os::fd::BorrowedFd, path::Path};

use snaprig_coord::migration::{
    Record, Source, WriteError,
    source::{Config, Outcome},
};
use snaprig_peers::Stream;
use snaprig_resources::{
    error::Result,
    event::{Event, Reporter},
};

use super::{
    asking::{SourceDriver, SourceTree},
    record::{self, Departure},
};

/// Where a directory's tree is gone to, if it is: of one that was on its way when its supervisor died, the target is
/// asked, for as long as it takes.
pub fn settle(directory: &Path, reporter: &Reporter) -> Result<Option<Departure>> {
    let Some(departure) = record::departure(directory)? else {
        return Ok(None);
    };
    let Record::Going(id, site) = departure.record else {
        return Ok(Some(departure));
    };
    let config = Config {
        id,
        token: departure.to.token()?,
        command: Vec::new(),
    };
    let question = Question {
        directory,
        reporter,
        departure: &departure,
    };
    let machine = Source::resumed(config, site, 0);
    Ok(
        match SourceDriver::new(machine, &departure.to, question).run() {
            Outcome::Gone => Some(Departure {
                record: Record::Gone(id),
                ..departure
            }),
            Outcome::Stays { .. } => departure.before.map(|before| *before),
        },
    )
}

/// A departure that somebody has left undone.
struct Question<'a> {
    directory: &'a Path,
    reporter: &'a Reporter,
    departure: &'a Departure,
}

impl SourceTree for Question<'_> {
    fn connected(&mut self, _: &Stream) -> Result<(), String> {
        Ok(())
    }

    fn copy(&mut self, _: &Stream) -> Result<(), String> {
        Err("there is no tree".into())
    }

    fn write(&mut self, record: Record) -> Result<(), WriteError> {
        let departure = Departure {
            record,
            ..self.departure.clone()
        };
        let written = record::set_departure(self.directory, Some(&departure));
        written.map_err(|error| WriteError {
            why: error.to_string(),
            in_doubt: true,
        })
    }

    fn erase(&mut self) {
        // If it stays, the target is asked again some day, and says the same.
        let before = self.departure.before.as_deref();
        let _ = record::set_departure(self.directory, before);
    }

    fn let_go(&mut self) {}

    fn end(&mut self) {}

    fn doubts(&mut self) {
        let to = self.departure.to.to_string();
        self.reporter.tell(Event::MigrationInDoubt { to });
    }

    fn client(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn answer(&mut self) {}
}
