//! The server and its disk.

use super::*;

impl World {
    pub(super) fn write(&mut self, endpoint: EndpointId, slot: u8, hash: u64) -> Option<Input> {
        let transfer = self.transfers.all.get(&(HOST, endpoint))?;
        let path = transfer.path.clone();
        let bytes = self
            .memory
            .get(&(transfer.address + at(slot) as u64))?
            .clone();
        if xxh3_64(&bytes) != hash {
            return Some(Input::Failed(failure(&path, libc::EBADMSG)));
        }
        let written = match self.fault(self.net.rig, &faults::WRITE) {
            Effect::Ended => return None,
            Effect::Error(errno) => Err(errno),
            // write(2) says how much it wrote, and the rest fails.
            Effect::Torn(most) => {
                let name = format!("{path}{UNFINISHED}");
                let torn = self.disk.append(&name, &bytes, most as usize);
                torn.and(Err(libc::EIO))
            }
            _ => self
                .disk
                .append(&format!("{path}{UNFINISHED}"), &bytes, usize::MAX),
        };
        let transfer = self.transfers.all.get_mut(&(HOST, endpoint))?;
        Some(match written {
            Ok(()) => {
                transfer.got.extend_from_slice(&bytes);
                Input::Taken
            }
            Err(errno) => Input::Failed(failure(&path, errno)),
        })
    }

    /// The server opens the file that a card names.
    pub(super) fn open(&mut self, endpoint: EndpointId, bytes: &[u8]) {
        let Some(Message::Open {
            mode, path, window, ..
        }) = decode(bytes)
        else {
            return self.close(HOST, endpoint);
        };
        let opened = match self.fault(self.net.rig, &faults::OPEN) {
            Effect::Ended => return,
            Effect::Error(errno) => Err(errno),
            _ => match mode {
                Mode::Write => self
                    .disk
                    .create(&format!("{path}{UNFINISHED}"))
                    .map(|()| Vec::new()),
                Mode::Read => self.stored_file(&path),
            },
        };
        let content = match opened {
            Ok(content) => content,
            Err(errno) => {
                self.tell(HOST, endpoint, &Message::Failed(failure(&path, errno)));
                return self.close(HOST, endpoint);
            }
        };
        let address = self.buffer();
        let transfer = Transfer {
            machine: None,
            path,
            mode,
            address,
            own: 0,
            window,
            chunks: content.chunks(CHUNK_BYTES).map(Vec::from).collect(),
            got: Vec::new(),
            copying: None,
            owner: None,
        };
        self.transfers.all.insert((HOST, endpoint), transfer);
        self.register(HOST, endpoint);
    }

    /// The bytes of a file, if its checksums vouch for them.
    pub(super) fn stored_file(&self, path: &str) -> Result<Vec<u8>, i32> {
        let bytes = self.disk.read(path).ok_or(libc::ENOENT)?;
        let sums = self
            .disk
            .read(&format!("{path}{SUMS}"))
            .ok_or(libc::ENOENT)?;
        match xxh3_64(bytes).to_le_bytes() == *sums {
            true => Ok(bytes.to_vec()),
            false => Err(libc::EBADMSG),
        }
    }

    pub(super) fn commit_file(&mut self, node: NodeId, endpoint: EndpointId) -> Option<Input> {
        if node != HOST {
            return Some(Input::Committed);
        }
        let transfer = self.transfers.all.get(&(HOST, endpoint))?;
        let (path, sum) = (transfer.path.clone(), xxh3_64(&transfer.got));
        let done = match self.fault(self.net.rig, &faults::COMMIT) {
            Effect::Ended => return None,
            Effect::Error(errno) => Err(errno),
            _ => self.name_file(&path, sum),
        };
        Some(match done {
            Ok(()) => Input::Committed,
            Err(errno) => Input::Failed(failure(&path, errno)),
        })
    }

    pub(super) fn name_file(&mut self, path: &str, sum: u64) -> Result<(), i32> {
        let (unfinished, sums) = (format!("{path}{UNFINISHED}"), format!("{path}{SUMS}"));
        if self.canary != Some(Canary::EarlyRename) {
            self.disk.sync(&unfinished)?;
        }
        self.disk.create(&sums)?;
        self.disk.append(&sums, &sum.to_le_bytes(), usize::MAX)?;
        self.disk.sync(&sums)?;
        self.disk.rename_one(&unfinished, path)
    }
}
