//! Plugins that wait for a checkpoint, for as long as it takes.

use std::path::{Path, PathBuf};

use snaprig_ckpt_plugin::{
    phase::{Phase, Span},
    turns::ShortTurns,
};
use snaprig_resources::{
    error::Result,
    plugins::owned::{Owned, OwnedByPlugin},
};

use super::{JobRound, SharedPlugins};

/// Plugins that are ready for a checkpoint; dropped, they are told that the program runs on.
pub struct ReadyPlugins {
    /// None: there is nobody to tell.
    plugins: Option<SharedPlugins>,
    /// Where their files are.
    directory: PathBuf,
    _turns: ShortTurns,
}

impl ReadyPlugins {
    /// Takes all plugins through the phases of a checkpoint whose files are in this directory; in a job, together with
    /// those of all other members. If one refuses, the others are told. Where the `span` goes beyond saving,
    /// [`Plugins::finish`](super::Plugins::finish) is waited for.
    pub fn of(
        plugins: &SharedPlugins,
        directory: &Path,
        job: Option<JobRound>,
        span: Span,
    ) -> Result<Self> {
        let gathered = Self {
            plugins: Some(plugins.clone()),
            directory: super::canonical(directory)?,
            _turns: ShortTurns::begin(),
        };
        let mut all = plugins.borrow_mut();
        all.machine.save_in(span);
        all.gather(&gathered.directory, job)?;
        drop(all);
        Ok(gathered)
    }

    /// Those, too, that have come since.
    pub fn again(self, job: Option<JobRound>) -> Result<Self> {
        if let Some(plugins) = &self.plugins {
            plugins.borrow_mut().gather_rest(&self.directory, job)?;
        }
        Ok(self)
    }

    /// Whether, now that the tree stands still, nobody has come since, or said something.
    pub fn is_all(&self) -> bool {
        let plugins = self.plugins.as_ref();
        plugins.is_none_or(|plugins| !plugins.borrow().has_news())
    }

    /// What belongs to plugins.
    pub fn owned(&self) -> Owned {
        let plugins = self.plugins.as_ref().map(|plugins| plugins.borrow());
        let owned = plugins.iter().flat_map(|plugins| plugins.machine.owned());
        Owned::of(owned.map(|(pid, owned)| {
            let owned = OwnedByPlugin {
                name: owned.name,
                channel: owned.channel,
                descriptors: owned.descriptors,
                regions: owned.regions,
            };
            (pid, owned)
        }))
    }

    /// The tree has ended: there is nobody to tell.
    pub fn forget(mut self) {
        self.plugins = None;
    }
}

impl Drop for ReadyPlugins {
    fn drop(&mut self) {
        if let Some(plugins) = &self.plugins {
            plugins.borrow_mut().release(Phase::Resume);
        }
    }
}
