//! Fewer checkpoints, and shorter chains.

use std::{collections::BTreeSet, fs};

use snaprig_store::{Existing, directory::sync};

use super::{Checkpoint, Manifest, Member, OLD, Store, StoreError, io_error};
use crate::{
    chain::Chain,
    image::{Options, Scanner},
};

impl Store {
    /// Removes all but the newest `keep` rounds and those that they build on; which were removed. A
    /// round that is damaged is not among those to keep, and is removed if it is older than they are.
    pub fn prune(&self, keep: usize) -> Result<Vec<u64>, StoreError> {
        let _lock = self.lock()?;
        let rounds = self.rounds()?;
        let mut kept = BTreeSet::new();
        let mut count = 0;
        for &round in rounds.iter().rev() {
            if count == keep.max(1) {
                break;
            }
            kept.insert(round);
            count += usize::from(self.keep_chain(round, &mut kept));
        }
        let removed: Vec<_> = rounds.into_iter().filter(|it| !kept.contains(it)).collect();
        for &round in &removed {
            let (path, old) = (self.path(round, None), self.path(round, Some(OLD)));
            fs::rename(&path, &old).map_err(io_error(&path))?;
        }
        sync(&self.dir)?;
        for &round in &removed {
            let old = self.path(round, Some(OLD));
            fs::remove_dir_all(&old).map_err(io_error(&old))?;
        }
        Ok(removed)
    }

    /// Adds the rounds that this one builds on; whether all of them are sound.
    fn keep_chain(&self, round: u64, kept: &mut BTreeSet<u64>) -> bool {
        let mut next = Some(round);
        while let Some(round) = next {
            kept.insert(round);
            match self.checkpoint(round) {
                Ok(checkpoint) => next = checkpoint.manifest.parent,
                Err(_) => return false,
            }
        }
        true
    }

    /// Makes every image of a round whole, so that it builds on no other; what it builds on is left
    /// to [`Store::prune`]. Whatever fails, the round is as it was.
    pub fn collapse(&self, round: u64, zstd: Option<i32>) -> Result<Checkpoint, StoreError> {
        let before = self.checkpoint(round)?;
        if before.manifest.parent.is_none() {
            return Ok(before);
        }
        let making = self.make(round, 0)?;
        let mut members = Vec::new();
        for member in &before.manifest.members {
            let from = before.path.join(&member.image);
            if Scanner::open(&from)?.header().parent.is_none() {
                let to = making.joined().dir().join(&member.image);
                fs::hard_link(&from, &to).map_err(io_error(&to))?;
                members.push(member.clone());
                continue;
            }
            let chain = Chain::open(&before.chain(&member.name)?)?;
            let options = Options {
                zstd,
                ..chain.collapsed_options("")
            };
            let header = chain.collapsed_header();
            let writer = making.joined().image(&member.name, &header, options)?;
            let (_, summary) = chain.copy_to(writer)?;
            members.push(Member::new(&member.name, &summary));
        }
        let manifest = Manifest {
            parent: None,
            members,
            ..before.manifest
        };
        let prepared = making.prepare(manifest)?;
        // The one is there until the very moment that the other is.
        let path = self.path(round, None);
        prepared.leading.publish(&path, Existing::Replace)?;
        self.checkpoint(round)
    }
}
