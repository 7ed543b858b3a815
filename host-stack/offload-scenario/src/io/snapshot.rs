//! What Snapify does with the snapshot's directory.

use super::*;

impl World {
    pub(crate) fn prepare(&mut self, host: HostId) -> Result<Done, SnapifyError> {
        match self.fault(self.host_processes[host], &snapify_faults::PREPARE) {
            Effect::Error(errno) => return Err(disk_error(Step::Agree, errno)),
            Effect::Ended => return Err(disk_error(Step::Agree, libc::EINTR)),
            _ => {}
        }
        let partial = partial(host);
        self.disk.remove(&partial);
        if self.canary == Some(Canary::LostPredecessor) {
            self.disk.remove(&finished(host));
        }
        let made = self.disk.create(&format!("{partial}binaries"));
        made.map_err(|errno| disk_error(Step::Agree, errno))?;
        Ok(Done::Prepared {
            directory: partial,
            binaries: vec![],
            proxy: false,
        })
    }

    pub(crate) fn commit(
        &mut self,
        host: HostId,
        local_store: &[StoredFile],
        images: Vec<u64>,
    ) -> Result<Done, SnapifyError> {
        let effect = self.fault(self.host_processes[host], &snapify_faults::COMMIT);
        let manifest = Manifest {
            round: self.hosts[host].script.round,
            local_store: local_store.to_vec(),
            images,
        };
        let done = match effect {
            Effect::Error(errno) => Err(errno),
            Effect::Ended => Err(libc::EINTR),
            _ => self.commit_directory(host, &manifest),
        };
        done.map(|()| Done::Done)
            .map_err(|errno| disk_error(Step::Commit, errno))
    }

    pub(super) fn commit_directory(
        &mut self,
        host: HostId,
        manifest: &Manifest,
    ) -> Result<(), i32> {
        let (partial, finished) = (partial(host), finished(host));
        let name = format!("{partial}{MANIFEST}");
        self.disk.create(&name)?;
        self.disk
            .append(&name, &frame::encode(manifest), usize::MAX)?;
        self.disk.sync(&name)?;
        self.disk.sync_names();
        self.disk.rename(&partial, &finished)?;
        self.disk.sync_names();
        Ok(())
    }

    /// `whole`: all of it, and a chain of images is made one.
    pub(crate) fn verify(&mut self, host: HostId, whole: bool) -> Result<Done, SnapifyError> {
        let finished = finished(host);
        match self.fault(self.host_processes[host], &snapify_faults::VERIFY) {
            Effect::Error(errno) => return Err(disk_error(Step::Verify, errno)),
            Effect::Ended => return Err(disk_error(Step::Verify, libc::EINTR)),
            Effect::Corrupt(bit) => {
                self.hosts[host].script.damaged = true;
                self.disk.corrupt(&format!("{finished}{IMAGE}"), bit);
            }
            _ => {}
        }
        let manifest = match whole {
            true => self
                .whole_snapshot(host)
                .and_then(|found| self.collapsed(host, found)),
            false => self.manifest(host),
        };
        manifest
            .map(|manifest| Done::Verified {
                snapshot: finished,
                local_store: manifest.local_store,
                binaries: vec![],
                proxy: false,
                image_bytes: manifest.images.iter().sum(),
            })
            .map_err(|errno| disk_error(Step::Verify, errno))
    }

    /// What is wrong with each host's snapshot, as it is or as a crash of the machine would leave it.
    pub(crate) fn broken_snapshots(&mut self) -> Vec<Option<String>> {
        let mut broken = vec![None; self.hosts.len()];
        for when in ["at the end", "after a crash of the machine"] {
            for (host, broken) in broken.iter_mut().enumerate() {
                let found = self.broken_snapshot(host);
                *broken = broken.take().or(found.map(|how| format!("{how}, {when}")));
            }
            self.disk.crash();
        }
        broken
    }

    pub(super) fn broken_snapshot(&self, host: HostId) -> Option<String> {
        let script = &self.hosts[host].script;
        let there = !self.disk.names(&finished(host)).is_empty();
        match self.whole_snapshot(host) {
            _ if script.damaged => None,
            Err(_) if !there && script.safe_round == 0 => None,
            Err(errno) => Some(format!("errno {errno}")),
            Ok(manifest) if manifest.round < script.safe_round => Some(format!(
                "it is snapshot {}, and {} was complete",
                manifest.round, script.safe_round
            )),
            Ok(_) => None,
        }
    }

    /// The snapshot's manifest, if all of the snapshot is there and whole.
    pub(super) fn whole_snapshot(&self, host: HostId) -> Result<Manifest, i32> {
        let finished = finished(host);
        let manifest = self.manifest(host)?;
        for file in &manifest.local_store {
            let name = format!("{finished}{LOCAL_STORE}/{}", file.name);
            if self.stored_file(&name)?.len() as u64 != file.len {
                return Err(libc::EBADMSG);
            }
        }
        for (number, len) in (0..).zip(&manifest.images) {
            let name = format!("{finished}{}", image(number));
            if self.stored_file(&name)?.len() as u64 != *len {
                return Err(libc::EBADMSG);
            }
        }
        Ok(manifest)
    }

    fn manifest(&self, host: HostId) -> Result<Manifest, i32> {
        let bytes = self.disk.read(&format!("{}{MANIFEST}", finished(host)));
        decode(bytes.ok_or(libc::ENOENT)?).ok_or(libc::EBADMSG)
    }

    /// A snapshot with one image in place of a chain of them.
    fn collapsed(&mut self, host: HostId, mut manifest: Manifest) -> Result<Manifest, i32> {
        if manifest.images.len() < 2 {
            return Ok(manifest);
        }
        let mut chain = None;
        let mut newest = None;
        for number in (0..).take(manifest.images.len()) {
            let bytes = self.stored_file(&format!("{}{}", finished(host), image(number)))?;
            let (kept, copy, image) = read_copy(chain.take(), &bytes)?;
            chain = Some((kept, copy));
            newest = Some(image);
        }
        let ((kept, copy), Some(mut whole)) = (chain.ok_or(libc::EBADMSG)?, newest) else {
            return Err(libc::EBADMSG);
        };
        whole.copy = Some(copy);
        let bytes = frame::encode(&(whole, kept));
        let partial = partial(host);
        self.disk.remove(&partial);
        let name = format!("{partial}{IMAGE}");
        let unfinished = format!("{name}{UNFINISHED}");
        self.disk.create(&unfinished)?;
        self.disk.append(&unfinished, &bytes, usize::MAX)?;
        self.name_file(&name, xxh3_64(&bytes))?;
        manifest.images = vec![bytes.len() as u64];
        self.commit_directory(host, &manifest)?;
        Ok(manifest)
    }
}
