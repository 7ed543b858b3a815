//! The cards of a rig that runs, for commands that are given one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Args;
use snaprig_rig::{CardState, RigError};
use snaprig_scif::client::{Endpoint, rig_from_environment};

use crate::AnyError;

/// Which rig.
#[derive(Args, Default)]
pub struct RunningRig {
    /// The rig's directory [default: $SNAPRIG_RIG]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
}

impl RunningRig {
    /// The one in this directory.
    pub fn at(directory: &Path) -> Self {
        let rig = Some(directory.into());
        Self { rig }
    }

    /// Its directory.
    pub fn directory(&self) -> Result<PathBuf, AnyError> {
        let rig = self.rig.clone().or_else(rig_from_environment);
        Ok(rig.ok_or("no rig is named: give --rig DIR, or set SNAPRIG_RIG")?)
    }

    /// Its cards, and what state each is in: its host node knows, which is where a driver's sysfs files would be.
    pub fn cards(&self) -> Result<BTreeMap<u16, CardState>, AnyError> {
        let rig = self.directory()?;
        let node = Endpoint::open(&rig);
        let node = node.map_err(|error| format!("no rig runs in {}: {error}", rig.display()))?;
        Ok(node.cards()?.into_iter().collect())
    }

    /// That it has a card under this node, on which programs run.
    pub fn require_online(&self, node: u16) -> Result<(), AnyError> {
        let cards = self.cards()?;
        match cards.get(&node) {
            Some(CardState::Online) => Ok(()),
            Some(state) => {
                let what_helps = match state {
                    CardState::Offline => format!("; snaprig card plug {node}"),
                    CardState::Crashed | CardState::ResetFailed => {
                        format!("; snaprig card reset {node}")
                    }
                    _ => String::new(),
                };
                Err(format!("card {node} is {state}{what_helps}").into())
            }
            None => {
                let cards = cards.into_keys().collect();
                Err(RigError::NoCard { node, cards }.into())
            }
        }
    }
}
