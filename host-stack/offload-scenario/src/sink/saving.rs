//! An offload process is saved, and comes back.

use coi_device::offload::machine::Failure;

use super::*;

/// About as long as a small file takes from card to card.
const FETCH_NS: u64 = 20_000;

impl World {
    /// The next file of the local store, or word that all are saved.
    pub(super) fn save_local_store(&mut self, node: NodeId, pid: Pid) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let Some(id) = process.unsaved.front().copied() else {
            let files = std::mem::take(&mut process.saved);
            return self.sink(node, pid, sink::Input::Saved(Ok(files)));
        };
        let name = format!("{}{LOCAL_STORE}/{id}", process.saving_to);
        let address = process.buffers.get(&id).map_or(0, |buffer| buffer.address);
        let pages = self.pages(address);
        if let Some(process) = self.living(node, pid) {
            process.marked.insert(id, pages.clone());
        }
        self.store(node, pid, &name, frame::encode(&pages), Mode::Write);
    }

    /// What stays, for another card to fetch.
    pub(super) fn list_local_store(&mut self, node: NodeId, pid: Pid) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        process.stays = true;
        let buffers = process.buffers.clone();
        let files = buffers
            .keys()
            .map(|id| file(*id, pid, BUFFER_BYTES))
            .collect();
        for (id, buffer) in buffers {
            let pages = self.pages(buffer.address);
            if let Some(process) = self.living(node, pid) {
                process.marked.insert(id, pages);
            }
        }
        self.sink(node, pid, sink::Input::Saved(Ok(files)));
    }

    /// A file of the local store that a card has of a process of its own.
    fn file_of(&mut self, node: NodeId, path: &str) -> Result<Vec<u8>, i32> {
        let own = self.process_of(node);
        let parts = path.trim_start_matches('/').split_once('/');
        let (pid, id) = parts.ok_or(libc::EINVAL)?;
        let (pid, id) = (pid.parse().unwrap_or(0), id.parse().unwrap_or(0));
        if !self.net.stage.engine.is_alive(own) {
            return Err(libc::ECONNRESET);
        }
        let is_early = self.canary == Some(Canary::EarlyStore);
        let process = self.living(node, pid).ok_or(libc::ENOENT)?;
        let buffer = *process.buffers.get(&id).ok_or(libc::ENOENT)?;
        let early = process.marked.get(&id).filter(|_| is_early).cloned();
        let pages = early.unwrap_or_else(|| self.pages(buffer.address));
        Ok(frame::encode(&pages))
    }

    pub(super) fn pages(&self, address: u64) -> Pages {
        let pages = (0..BUFFER_BYTES).step_by(PAGE as usize);
        pages.map(|at| self.cell(address + at)).collect()
    }

    pub(crate) fn capture(&mut self, node: NodeId, pid: Pid) {
        let own = self.process_of(node);
        match self.fault(own, &faults::IMAGE) {
            Effect::Ended => return,
            Effect::Error(errno) => {
                let failed = (errno, "the service failed".to_owned());
                let process = self.living(node, pid);
                let copying = process.is_some_and(|one| std::mem::take(&mut one.copying));
                return self.sink(
                    node,
                    pid,
                    match copying {
                        true => sink::Input::Copied(Err(failed)),
                        false => sink::Input::Captured(Err(failed)),
                    },
                );
            }
            _ => {}
        }
        let runs_on = self.canary == Some(Canary::RunsOn);
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let (ending, copying) = (process.ending, process.copying);
        if ending && !runs_on {
            process.held = Some(Vec::new());
        }
        let (mut image, machine) = (process.image.clone(), process.machine.clone());
        let references = process.references.clone();
        let number = process.link.as_ref().map_or(0, |link| link.number);
        let name = format!("{}{}", process.saving_to, image_of(number));
        let link = process.link.take();
        let (marked, buffers) = (process.marked.clone(), process.buffers.clone());
        let stays = process.stays;
        let mut now = BTreeMap::new();
        for (id, buffer) in buffers {
            let pages = self.pages(buffer.address);
            now.insert(id, pages.clone());
            if link.is_some() || stays {
                continue;
            }
            if marked.get(&id) != Some(&pages) && self.canary != Some(Canary::StaleStore) {
                image.changed.insert(id, pages);
            }
        }
        if !copying {
            self.check_cut(image.host, "at the capture", &image.counts);
        }
        self.transfers.kept += 1;
        let kept = self.transfers.kept;
        let clean = self.canary == Some(Canary::CleanCopy);
        if let Some(process) = self.living(node, pid) {
            process.kept = kept;
            image.copy = link.map(|link| copy(process, &link, &now, clean));
            if image.copy.is_some() {
                process.copied = Some((kept, now.keys().copied().collect()));
            }
        }
        self.transfers
            .machines
            .insert(kept, (machine, references, now));
        let bytes = frame::encode(&(image, kept));
        self.store(node, pid, &name, bytes, Mode::Write);
    }

    /// A file of the process is on the host's disk, or is not.
    pub(crate) fn stored(&mut self, node: NodeId, pid: Pid, name: &str, result: Result<u64, i32>) {
        if name.ends_with(IMAGE) {
            let process = self.living(node, pid);
            if process.is_some_and(|one| std::mem::take(&mut one.copying)) {
                let copied = result.map_err(failed);
                return self.sink(node, pid, sink::Input::Copied(copied));
            }
            if self.living(node, pid).is_some_and(|one| one.ending) {
                return self.leave_or_go_on(node, pid, result);
            }
            let captured = result.map(Captured::Saved).map_err(failed);
            return self.sink(node, pid, sink::Input::Captured(captured));
        }
        match (result, self.living(node, pid)) {
            (Err(errno), _) => self.sink(node, pid, sink::Input::Saved(Err(failed(errno)))),
            (Ok(len), Some(process)) => {
                if let Some(id) = process.unsaved.pop_front() {
                    process.saved.push(file(id, pid, len));
                }
                self.save_local_store(node, pid);
            }
            (Ok(_), None) => {}
        }
    }

    /// The image of a process's last capture is safe, or is not: then its threads go on after all.
    fn leave_or_go_on(&mut self, node: NodeId, pid: Pid, result: Result<u64, i32>) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        let hung_up = |task: &CardTask| matches!(task, CardTask::ToSink(_, _, None));
        let result = match process.held.iter().flatten().any(hung_up) {
            true => Err(libc::EPIPE),
            false => result,
        };
        match result {
            Ok(bytes) => {
                process.is_leaving = true;
                self.answer_daemon(node, pid, Reply::Captured { bytes });
            }
            Err(errno) => self.go_on(node, pid, Err(failed(errno))),
        }
    }

    /// A process that only waits for its end is asked for that, or for something else. Nobody who is gone
    /// will: its snapshot may be complete.
    pub(crate) fn last_word(&mut self, node: NodeId, pid: Pid, request: Option<&Request>) {
        let Some(process) = self.living(node, pid) else {
            return;
        };
        process.is_leaving = false;
        let (ran_on, kept) = (process.held.is_none(), process.kept);
        let ends = matches!(request, None | Some(Request::End { .. }));
        if ran_on || !ends {
            self.transfers.stale.insert(kept);
        }
        match ends {
            true => self.end(node, pid, Exit::Code(0)),
            false => self.go_on(node, pid, Ok(Captured::GoesOn)),
        }
    }

    fn go_on(&mut self, node: NodeId, pid: Pid, captured: Result<Captured, Failure>) {
        let held = self.living(node, pid).and_then(|one| one.held.take());
        let own = self.process_of(node);
        for task in held.into_iter().flatten() {
            self.net.stage.engine.after(own, 0, Event::Card(node, task));
        }
        self.sink(node, pid, sink::Input::Captured(captured));
    }

    // Coming back.

    pub(crate) fn restore(&mut self, node: NodeId, conn: Conn, request: Request) {
        let (snapshot, number, files, from, preload) = match request {
            Request::Restore {
                snapshot,
                number,
                local_store,
                from,
                ..
            } => (snapshot, number, local_store, from, false),
            Request::Preload {
                snapshot, number, ..
            } => (snapshot, number, Vec::new(), HOST, true),
            _ => return,
        };
        let restoring = Restoring {
            snapshot,
            number,
            preload,
            files: files.into(),
            from,
            contents: BTreeMap::new(),
        };
        self.card(node).restoring.insert(conn, restoring);
        self.fetch_next(node, conn);
    }

    pub(super) fn fetch_next(&mut self, node: NodeId, conn: Conn) {
        if let Some(restoring) = self.card(node).restoring.get(&conn) {
            if let (1.., Some(file)) = (restoring.from, restoring.files.front()) {
                let (from, path) = (restoring.from, file.card_path.clone());
                let task = CardTask::Fetched(conn, self.file_of(from, &path));
                let own = self.process_of(node);
                let event = Event::Card(node, task);
                return self.net.stage.engine.after(own, FETCH_NS, event);
            }
            let name = match restoring.files.front() {
                Some(file) => format!("{}{LOCAL_STORE}/{}", restoring.snapshot, file.name),
                None => format!("{}{}", restoring.snapshot, image_of(restoring.number)),
            };
            self.fetch(node, conn, &name);
        }
    }

    /// A file has come from the host, or has not.
    pub(crate) fn fetched(&mut self, node: NodeId, conn: Conn, result: Result<Vec<u8>, i32>) {
        let Some(restoring) = self.card(node).restoring.get_mut(&conn) else {
            return;
        };
        if let (Ok(bytes), Some(file)) = (&result, restoring.files.pop_front()) {
            let id = file.name.parse().unwrap_or(0);
            restoring.contents.insert(id, bytes.clone());
            return self.fetch_next(node, conn);
        }
        let own = self.process_of(node);
        let result = match self.fault(own, &faults::REVIVE) {
            Effect::Ended => return,
            Effect::Error(errno) => Err(errno),
            _ => result,
        };
        let Some(restoring) = self.card(node).restoring.remove(&conn) else {
            return;
        };
        let preloaded = self.card(node).preloaded.remove(&conn);
        if restoring.preload {
            let read = result.and_then(|bytes| read_copy(preloaded, &bytes));
            let read = read.map(|(kept, copy, _)| {
                self.card(node).preloaded.insert(conn, (kept, copy));
            });
            let input = daemon::Input::Preloaded(conn, read.map_err(refusal));
            return self.daemon(node, input);
        }
        let restored = result.and_then(|bytes| {
            let contents = restoring.contents.into_iter();
            let contents = contents.map(|(id, bytes)| Some((id, decode(&bytes)?)));
            let contents: Option<_> = contents.collect();
            self.revive(node, &bytes, preloaded, contents.ok_or(libc::EBADMSG)?)
        });
        self.daemon(
            node,
            daemon::Input::Restored(conn, restored.map_err(refusal)),
        );
    }

    pub(super) fn revive(
        &mut self,
        node: NodeId,
        bytes: &[u8],
        preloaded: Option<(u64, Copy)>,
        mut contents: BTreeMap<u64, Pages>,
    ) -> Result<Pid, i32> {
        let (mut image, kept) = decode::<(Image, u64)>(bytes).ok_or(libc::EBADMSG)?;
        if image.copy.is_some() {
            let (_, copy, _) = read_copy(preloaded, bytes)?;
            if copy.live {
                return Err(libc::EBADMSG);
            }
            contents = copy.contents();
            image.copy = None;
        }
        let machine = self.transfers.machines.get(&kept).cloned();
        let (machine, references, captured) = machine.ok_or(libc::EBADMSG)?;
        if self.transfers.stale.contains(&kept) {
            let how = "a process comes back that ran on where it was captured";
            self.violation(invariants::RESTORED, how);
        }
        self.check_cut(image.host, "at the restore", &image.counts);
        let mut changed = std::mem::take(&mut image.changed);
        let mut offload = Offload::new(machine, image);
        offload.references = references;
        for (id, saved) in contents {
            let mut pages: Pages = changed.remove(&id).unwrap_or(saved);
            if self.canary == Some(Canary::LostPage) {
                pages.pop();
            }
            let address = self.buffer();
            for (at, value) in (0..BUFFER_BYTES).step_by(PAGE as usize).zip(&pages) {
                self.set_cell(address + at, *value);
            }
            let there = self.pages(address);
            if captured.get(&id) != Some(&there) && !self.damaged {
                let how = format!(
                    "buffer {id} comes back as {there:?}, and was captured as {:?}",
                    captured.get(&id)
                );
                self.violation(invariants::RESTORED, how);
            }
            let offset = None;
            offload.buffers.insert(id, Buffer { address, offset });
        }
        let pid = self.new_process(node, offload);
        self.sink(node, pid, sink::Input::Captured(Ok(Captured::Restarted)));
        Ok(pid)
    }
}

/// A file of the local store of a process.
fn file(id: u64, pid: Pid, len: u64) -> StoredFile {
    StoredFile {
        name: id.to_string(),
        card_path: format!("/{pid}/{id}"),
        len,
        mode: 0o600,
    }
}

fn failed(errno: i32) -> Failure {
    (errno, format!("errno {errno}"))
}

/// What an image of a chain says of buffers, which are as they are `now`. What it has not is what nobody has written to
/// since the one before.
fn copy(process: &mut Offload, link: &Link, now: &BTreeMap<u64, Pages>, clean: bool) -> Copy {
    let last = match link.number {
        0 => None,
        _ => process.copied.take(),
    };
    let dirty = std::mem::take(&mut process.dirty);
    let (parent, known) = match &last {
        Some((kept, known)) => (Some(*kept), Some(known)),
        None => (None, None),
    };
    let mut copy = Copy {
        parent,
        live: process.copying,
        buffers: now.keys().copied().collect(),
        pages: BTreeMap::new(),
    };
    for (id, pages) in now {
        let is_new = known.is_none_or(|known| !known.contains(id));
        for (number, value) in (0..).zip(pages) {
            let range = (number * PAGE, (number + 1) * PAGE);
            let wrote =
                |one: &Wrote| one.memory == *id && one.range.0 < range.1 && range.0 < one.range.1;
            let is_dirty = dirty.contains(&(*id, number)) && !clean;
            if is_new || is_dirty || link.wrote.iter().any(wrote) {
                copy.pages.insert((*id, number), *value);
            }
        }
    }
    copy
}

/// An image of a chain, on top of the one before it: its number, and what both say.
pub(crate) fn read_copy(
    before: Option<(u64, Copy)>,
    bytes: &[u8],
) -> Result<(u64, Copy, Image), i32> {
    let (mut image, kept) = decode::<(Image, u64)>(bytes).ok_or(libc::EBADMSG)?;
    let copy = image.copy.take().ok_or(libc::EBADMSG)?;
    match (before, copy.parent) {
        (_, None) => Ok((kept, copy, image)),
        (Some((last, mut before)), Some(parent)) if last == parent => {
            before.follow(copy);
            before.parent = None;
            Ok((kept, before, image))
        }
        _ => Err(libc::EBADMSG),
    }
}
