//! Those from whom trees have come, as the supervisor of such a tree has them: they are answered while it does other
//! things, and every checkpoint names those that may still ask.

use rustix::event::PollFd;
use snaprig_ckpt_image::store::{Arrival, Store};
use snaprig_resources::{
    error::{Result, chain},
    event::{Event, Reporter},
};
use std::{path::Path, time::Duration};

use super::{Target, endpoint::Endpoint, record};

/// Sources that may still ask whether their trees have come here.
#[derive(Default)]
pub struct Sources {
    /// Where they ask.
    endpoint: Option<Endpoint>,
    /// Those that cannot ask now.
    unanswered: Vec<Arrival>,
}

impl Sources {
    /// Those that ask here.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint: Some(endpoint),
            unanswered: Vec::new(),
        }
    }

    /// Those of a directory, of which a tree is restarted; they are answered where the last of them looks for it.
    pub fn of(store: &Store, restarted: &[Arrival], reporter: &Reporter) -> Self {
        let arrivals = record::arrivals(store).unwrap_or_else(|_| restarted.to_vec());
        let Some(last) = arrivals.last() else {
            return Self::default();
        };
        let endpoint = listen(store.dir(), last, arrivals.clone(), reporter);
        match endpoint {
            Ok(endpoint) => Self::new(endpoint),
            Err(error) => {
                let why = chain(&error);
                reporter.tell(Event::SourcesUnanswered { why });
                Self {
                    endpoint: None,
                    unanswered: arrivals,
                }
            }
        }
    }

    /// What a checkpoint is to name.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let endpoint = self.endpoint.as_ref().map(Endpoint::arrivals);
        endpoint.unwrap_or_else(|| self.unanswered.clone())
    }

    /// What to wait for.
    pub fn descriptors(&self) -> Vec<PollFd<'_>> {
        let endpoint = self.endpoint.as_ref();
        endpoint.map(Endpoint::descriptors).unwrap_or_default()
    }

    /// How long until they are to be heard.
    pub fn left(&self) -> Option<Duration> {
        self.endpoint.as_ref().and_then(Endpoint::left)
    }

    /// Hears them, and answers; when nobody may ask any more, nobody can.
    pub fn go_on(&mut self) {
        let Some(endpoint) = &mut self.endpoint else {
            return;
        };
        endpoint.go_on();
        // It has a tree: there is nothing else to do.
        while endpoint.next_work().is_some() {}
        if !endpoint.is_awaited() {
            self.endpoint = None;
        }
    }

    /// The tree has ended. They are answered for some time.
    pub fn linger(&mut self) -> Result<()> {
        self.go_on();
        self.endpoint
            .as_mut()
            .map_or(Ok(()), Endpoint::linger_after_the_end)
    }
}

fn listen(
    directory: &Path,
    last: &Arrival,
    arrivals: Vec<Arrival>,
    reporter: &Reporter,
) -> Result<Endpoint> {
    let (site, at) = (record::site(directory)?, Target::of(last)?);
    Endpoint::with_tree(site, &at, arrivals, reporter)
}
