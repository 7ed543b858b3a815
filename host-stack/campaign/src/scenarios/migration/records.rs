//! What the supervisors write down. A record is there when it has its name, and for good when its directory is synced.

use std::collections::BTreeSet;

use snaprig_coord::migration::{Id, Record, WriteError, faults};
use snaprig_wire::frame;

use super::{
    Canary,
    program::Program,
    world::{SOURCE, Side, TARGET, World},
};
use crate::stage::{Effect, System as _};

/// The source's record.
const RECORD: &str = "migration";
/// The checkpoint from which the source restarts its tree.
const CHECKPOINT: &str = "checkpoint";
/// In front of the names of the target's records, and of images.
const COMMITTED: &str = "committed-";
const IMAGE: &str = "image-";

fn name_of(what: &str, id: Id) -> String {
    format!("{what}{:032x}", u128::from_le_bytes(id.0))
}

/// The migration of a name.
fn id_of(what: &str, name: &str) -> Option<Id> {
    let number = u128::from_str_radix(name.strip_prefix(what)?, 16).ok()?;
    Some(Id(number.to_le_bytes()))
}

fn certain(errno: i32) -> WriteError {
    WriteError {
        why: format!("errno {errno}"),
        in_doubt: false,
    }
}

impl World {
    /// A file is under its name, for good. `None` if whoever writes it has died of it.
    fn write(&mut self, side: Side, name: &str, bytes: &[u8]) -> Option<Result<(), WriteError>> {
        let process = self.processes[side];
        let mut most = bytes.len();
        match self.fault(process, &faults::RECORD) {
            Effect::Ended => return None,
            Effect::Error(errno) => return Some(Err(certain(errno))),
            Effect::Torn(bytes) => most = bytes as usize % most.max(1),
            _ => {}
        }
        let temporary = format!("new-{name}");
        let disk = &mut self.disks[side];
        let written = disk
            .create(&temporary)
            .and_then(|()| disk.append(&temporary, bytes, most))
            .and_then(|()| disk.sync(&temporary));
        let written = match written {
            Ok(()) if most < bytes.len() => Err(libc::EIO),
            other => other,
        };
        if let Err(errno) = written.and_then(|()| disk.rename_one(&temporary, name)) {
            return Some(Err(certain(errno)));
        }
        match self.fault(process, &faults::NAMED) {
            Effect::Ended => None,
            Effect::Error(errno) => Some(Err(WriteError {
                in_doubt: true,
                ..certain(errno)
            })),
            _ => {
                if self.canary != Some(Canary::UnsyncedDecision) || side == SOURCE {
                    self.disks[side].sync_names();
                }
                Some(Ok(()))
            }
        }
    }

    /// The source writes its record.
    pub fn write_record(&mut self, record: Record) -> Option<Result<(), WriteError>> {
        self.write(SOURCE, RECORD, &frame::encode(&record))
    }

    /// The source's record, if it has one.
    pub fn record(&self) -> Option<Record> {
        frame::decode(self.disks[SOURCE].read(RECORD)?).ok()
    }

    /// The source needs its record no more.
    pub fn erase_record(&mut self) {
        self.disks[SOURCE].remove(RECORD);
    }

    /// The target has decided.
    pub fn write_decision(&mut self, id: Id) -> Option<Result<(), WriteError>> {
        let image = name_of(IMAGE, id);
        if let Err(errno) = self.disks[TARGET].sync(&image) {
            return Some(Err(certain(errno)));
        }
        self.write(TARGET, &name_of(COMMITTED, id), b"committed")
    }

    /// The target's record goes, for good. `None` if it has died of it.
    pub fn withdraw_decision(&mut self, id: Id) -> Option<Result<(), String>> {
        self.disks[TARGET].remove(&name_of(COMMITTED, id));
        match self.fault(self.processes[TARGET], &faults::NAMED) {
            Effect::Ended => None,
            Effect::Error(errno) => Some(Err(format!("errno {errno}"))),
            _ => {
                self.disks[TARGET].sync_names();
                Some(Ok(()))
            }
        }
    }

    /// The migrations whose trees are the target's.
    pub fn decisions(&self) -> BTreeSet<Id> {
        let names = self.disks[TARGET].names(COMMITTED).into_iter();
        names.filter_map(|name| id_of(COMMITTED, &name)).collect()
    }

    /// Keeps an image that has come.
    pub fn write_image(&mut self, id: Id, image: &[u8]) -> Result<(), String> {
        let (name, disk) = (name_of(IMAGE, id), &mut self.disks[TARGET]);
        let written = disk.create(&name);
        let written = written.and_then(|()| disk.append(&name, image, image.len()));
        written.map_err(|errno| format!("errno {errno}"))
    }

    /// The program of an image.
    pub fn image(&self, id: Id) -> Option<Program> {
        frame::decode(self.disks[TARGET].read(&name_of(IMAGE, id))?).ok()
    }

    /// An image is of no use any more.
    pub fn remove_image(&mut self, id: Id) {
        self.disks[TARGET].remove(&name_of(IMAGE, id));
    }

    /// The checkpoint that the source had before anything went wrong.
    pub fn write_checkpoint(&mut self, program: &Program) {
        let (bytes, disk) = (frame::encode(program), &mut self.disks[SOURCE]);
        // Nothing is wrong with the disk yet.
        let _ = disk.create(CHECKPOINT);
        let _ = disk.append(CHECKPOINT, &bytes, bytes.len());
        let _ = disk.sync(CHECKPOINT);
        disk.sync_names();
    }

    /// What is in it.
    pub fn checkpoint(&self) -> Option<Program> {
        frame::decode(self.disks[SOURCE].read(CHECKPOINT)?).ok()
    }

    /// What a supervisor finds when it starts is to stay, before anything is done because of it.
    pub fn settle_disk(&mut self, side: Side) {
        self.disks[side].sync_names();
    }
}
