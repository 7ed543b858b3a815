//! epoll(7): a set of descriptors to watch. An edge-triggered entry is reported if it is ready and
//! something has happened to its file since it was last reported (`File::edges`).

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Description, File, PollMask, mask},
    wait::{Channel, SysResult},
};

use crate::table::Open;

/// Most descriptors that one instance watches.
const WATCHED_MAX: usize = 4096;
/// Most instances that watch each other in a chain (fs/eventpoll.c, EP_MAX_NESTS).
const NESTS_MAX: usize = 4;

struct Watched {
    open: Weak<Open>,
    events: u32,
    data: u64,
    /// What was last reported, and the file's edges then; none yet.
    reported: Option<(u32, u64)>,
    disabled: bool,
}

/// An entry of the interest list, as epoll_ctl(2) would make it.
pub struct Interest {
    /// The descriptor that it was made with.
    pub fd: i32,
    /// What is watched.
    pub open: Arc<Open>,
    /// `EPOLL*`.
    pub events: u32,
    /// What comes with a report.
    pub data: u64,
}

/// An epoll instance.
pub struct Epoll {
    watched: Mutex<BTreeMap<i32, Watched>>,
    /// Where the next report starts, so that a busy descriptor does not hide the others.
    next: AtomicI32,
    channel: Channel,
    /// How many instances there have ever been in a chain above this one.
    above: AtomicUsize,
}

impl Epoll {
    /// One that watches nothing.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            watched: Mutex::default(),
            next: AtomicI32::new(0),
            channel: Channel::new(),
            above: AtomicUsize::new(0),
        })
    }

    /// epoll_ctl(2). The kernel runs one at a time.
    pub fn control(
        &self,
        op: i32,
        fd: i32,
        open: &Arc<Open>,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        if let Some(nested) = open.file.as_any().downcast_ref::<Self>()
            && op == libc::EPOLL_CTL_ADD
        {
            nested.check_nesting(self)?;
            nested.go_below(self.above.load(Ordering::Relaxed) + 1);
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|_, entry| entry.open.strong_count() > 0);
        let entry = Watched {
            open: Arc::downgrade(open),
            events: events | (libc::EPOLLERR | libc::EPOLLHUP) as u32,
            data,
            reported: None,
            disabled: false,
        };
        match op {
            libc::EPOLL_CTL_ADD if watched.contains_key(&fd) => Err(Errno::EEXIST),
            libc::EPOLL_CTL_ADD if watched.len() >= WATCHED_MAX => Err(Errno::ENOSPC),
            libc::EPOLL_CTL_ADD => {
                watched.insert(fd, entry);
                Ok(())
            }
            libc::EPOLL_CTL_MOD => {
                *watched.get_mut(&fd).ok_or(Errno::ENOENT)? = entry;
                Ok(())
            }
            libc::EPOLL_CTL_DEL => watched.remove(&fd).map(|_| ()).ok_or(Errno::ENOENT),
            _ => Err(Errno::EINVAL),
        }
    }

    /// ELOOP if instances would watch each other in a ring, or in too long a chain.
    fn check_nesting(&self, above: &Self) -> Result<(), Errno> {
        let chain = above.above.load(Ordering::Relaxed) + self.height();
        match chain >= NESTS_MAX || self.reaches(above) {
            true => Err(Errno::ELOOP),
            false => Ok(()),
        }
    }

    /// What `of` says of the instances that this one watches.
    fn nested<T>(&self, mut of: impl FnMut(&Self) -> T) -> Vec<T> {
        let opens = self.opens();
        let files = opens.iter().map(|open| open.file.as_any());
        files
            .filter_map(|file| file.downcast_ref::<Self>().map(&mut of))
            .collect()
    }

    /// What it watches and is still open.
    fn opens(&self) -> Vec<Arc<Open>> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let opens = watched.values().filter_map(|entry| entry.open.upgrade());
        opens.collect()
    }

    fn height(&self) -> usize {
        let below = self.nested(Self::height);
        below.into_iter().max().map_or(0, |height| height + 1)
    }

    fn reaches(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.nested(|below| below.reaches(other)).contains(&true)
    }

    fn go_below(&self, above: usize) {
        self.above.fetch_max(above, Ordering::Relaxed);
        self.nested(|below| below.go_below(above + 1));
    }

    /// Up to `max` ready entries: events and data. Marks them as reported.
    pub fn take_ready(&self, max: usize) -> Vec<(u32, u64)> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let start = self.next.load(Ordering::Relaxed);
        let later = watched.range(start..).map(|(fd, _)| *fd);
        let order: Vec<i32> = later
            .chain(watched.range(..start).map(|(fd, _)| *fd))
            .collect();
        let mut ready = Vec::new();
        for fd in order {
            if ready.len() == max {
                self.next.store(fd, Ordering::Relaxed);
                break;
            }
            let Some(entry) = watched.get_mut(&fd) else {
                continue;
            };
            if let Some(events) = entry.take() {
                ready.push((events, entry.data));
            }
        }
        ready
    }

    /// What it watches, for an image.
    pub fn watched(&self) -> Vec<Interest> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let interest = |(fd, entry): (&i32, &Watched)| {
            Some(Interest {
                fd: *fd,
                open: entry.open.upgrade()?,
                events: entry.armed_events(),
                data: entry.data,
            })
        };
        watched.iter().filter_map(interest).collect()
    }

    fn any_ready(&self) -> bool {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.values().any(|entry| entry.due().is_some())
    }
}

impl Watched {
    /// What is to be reported now, and the file's edges.
    fn due(&self) -> Option<(u32, u64)> {
        let open = self.open.upgrade().filter(|_| !self.disabled)?;
        let edges = open.file.edges(self.events as PollMask);
        let now = open.file.poll() as u16 as u32 & self.events;
        let is_new = match self.reported {
            Some((bits, seen)) if self.events & libc::EPOLLET as u32 != 0 => {
                edges != seen || now & !bits != 0
            }
            _ => true,
        };
        (now != 0 && is_new).then_some((now, edges))
    }

    /// Reports it, if it is to be reported.
    fn take(&mut self) -> Option<u32> {
        let Some((now, edges)) = self.due() else {
            self.forget_gone_bits();
            return None;
        };
        self.reported = Some((now, edges));
        self.disabled = self.events & libc::EPOLLONESHOT as u32 != 0;
        Some(now)
    }

    /// What it is to be told of: nothing if it has been reported once and that was all it wanted.
    fn armed_events(&self) -> u32 {
        match self.disabled {
            true => self.events & (libc::EPOLLONESHOT | libc::EPOLLET) as u32,
            false => self.events,
        }
    }

    /// Bits that are not ready any more are news when they come back.
    fn forget_gone_bits(&mut self) {
        if let (Some(open), Some((bits, _))) = (self.open.upgrade(), &mut self.reported) {
            *bits &= open.file.poll() as u16 as u32;
        }
    }
}

impl File for Epoll {
    /// It knows only requests about busy polling.
    fn ioctl(&self, _cx: &mut Cx, _request: u32, _argument: u64) -> SysResult<i64> {
        Err(Errno::EINVAL.into())
    }

    fn poll(&self) -> PollMask {
        mask(self.any_ready(), libc::POLLIN)
    }

    /// Whatever happens to what it watches.
    fn edges(&self, _events: PollMask) -> u64 {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let edges = watched.values().filter_map(|entry| {
            let open = entry.open.upgrade()?;
            Some(open.file.edges(entry.events as PollMask))
        });
        edges.fold(0, u64::wrapping_add)
    }

    fn channels(&self) -> Vec<Channel> {
        let opens = self.opens();
        let channels = opens.iter().flat_map(|open| open.file.channels());
        channels.chain([self.channel]).collect()
    }

    fn deadline(&self) -> Option<Duration> {
        let opens = self.opens();
        opens.iter().filter_map(|open| open.file.deadline()).min()
    }

    fn describe(&self) -> Description {
        Description::Epoll
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::errno::Errno;

    use super::Epoll;
    use crate::test_kit::{Kit, error};

    const EDGE: i32 = libc::EPOLLIN | libc::EPOLLET;

    fn epoll(kit: &mut Kit) -> u64 {
        kit.call(libc::SYS_epoll_create1, &[0]).unwrap()
    }

    fn control(kit: &mut Kit, epoll: u64, operation: i32, fd: u64, events: i32) {
        kit.put(0x900, &events.to_le_bytes());
        kit.put(0x904, &fd.to_le_bytes());
        kit.call(libc::SYS_epoll_ctl, &[epoll, operation as u64, fd, 0x900])
            .unwrap();
    }

    fn add(kit: &mut Kit, epoll: u64, fd: u64, events: i32) {
        control(kit, epoll, libc::EPOLL_CTL_ADD, fd, events);
    }

    /// How many are ready of at most `max`, without waiting.
    fn ready(kit: &mut Kit, epoll: u64, max: u64) -> u64 {
        kit.call(libc::SYS_epoll_wait, &[epoll, 0xa00, max, 0])
            .unwrap()
    }

    fn write(kit: &mut Kit, fd: u64, bytes: u64) {
        assert_eq!(kit.call(libc::SYS_write, &[fd, 0x10000, bytes]), Ok(bytes));
    }

    #[test]
    fn data_after_a_drain_is_an_edge_and_data_that_stays_is_none() {
        let mut kit = Kit::new();
        let (read, to) = kit.pipe(libc::O_NONBLOCK);
        let set = epoll(&mut kit);
        add(&mut kit, set, read, EDGE);
        for _ in 0..2 {
            write(&mut kit, to, 8);
            assert_eq!(ready(&mut kit, set, 8), 1);
            assert_eq!(ready(&mut kit, set, 8), 0);
            assert_eq!(kit.call(libc::SYS_read, &[read, 0x2000, 64]), Ok(8));
        }
        // More data is an edge although the first is still there; reading a part is none.
        write(&mut kit, to, 8);
        assert_eq!(ready(&mut kit, set, 8), 1);
        write(&mut kit, to, 8);
        assert_eq!(ready(&mut kit, set, 8), 1);
        kit.call(libc::SYS_read, &[read, 0x2000, 4]).unwrap();
        assert_eq!(ready(&mut kit, set, 8), 0);
        kit.call(libc::SYS_close, &[to]).unwrap();
        assert_eq!(ready(&mut kit, set, 8), 1, "the end is an edge");
    }

    #[test]
    fn every_write_to_an_eventfd_is_an_edge() {
        let mut kit = Kit::new();
        let event = kit
            .call(libc::SYS_eventfd2, &[0, libc::EFD_NONBLOCK as u64])
            .unwrap();
        let set = epoll(&mut kit);
        add(&mut kit, set, event, EDGE);
        kit.put(0x10000, &1_u64.to_le_bytes());
        for _ in 0..3 {
            write(&mut kit, event, 8);
            assert_eq!(ready(&mut kit, set, 8), 1);
        }
    }

    #[test]
    fn room_is_an_edge_for_a_writer_that_had_too_little() {
        let mut kit = Kit::new();
        let (a, b) = kit.sockets();
        let set = epoll(&mut kit);
        add(&mut kit, set, a, libc::EPOLLOUT | libc::EPOLLET);
        assert_eq!(ready(&mut kit, set, 8), 1);
        write(&mut kit, a, 65536);
        kit.wakes = 0;
        for _ in 0..3 {
            kit.call(libc::SYS_read, &[b, 0x20000, 10_000]).unwrap();
            assert_eq!(ready(&mut kit, set, 8), 0, "not enough room");
        }
        assert_eq!(kit.wakes, 0, "a writer would come for each read");
        kit.call(libc::SYS_read, &[b, 0x20000, 10_000]).unwrap();
        assert_eq!(kit.wakes, 1, "half of it is free");
        assert_eq!(ready(&mut kit, set, 8), 1);
        assert_eq!(ready(&mut kit, set, 8), 0);
    }

    #[test]
    fn instances_watch_each_other_in_chains_only() {
        let mut kit = Kit::new();
        let (read, to) = kit.pipe(0);
        let chain: Vec<u64> = (0..6).map(|_| epoll(&mut kit)).collect();
        kit.put(0x900, &EDGE.to_le_bytes());
        let try_add = |kit: &mut Kit, above: u64, below: u64| {
            let add = libc::EPOLL_CTL_ADD as u64;
            kit.call(libc::SYS_epoll_ctl, &[above, add, below, 0x900])
        };
        assert_eq!(try_add(&mut kit, chain[0], chain[0]), error(Errno::EINVAL));
        for pair in chain[..5].windows(2).rev() {
            assert_eq!(try_add(&mut kit, pair[0], pair[1]), Ok(0));
        }
        for below in &chain[..4] {
            let ring = try_add(&mut kit, chain[4], *below);
            assert_eq!(ring, error(Errno::ELOOP));
        }
        for (above, below) in [(chain[5], chain[0]), (chain[4], chain[5])] {
            let too_long = try_add(&mut kit, above, below);
            assert_eq!(too_long, error(Errno::ELOOP));
        }
        add(&mut kit, chain[4], read, libc::EPOLLIN);
        assert_eq!(ready(&mut kit, chain[0], 8), 0);
        for _ in 0..2 {
            write(&mut kit, to, 8);
            assert_eq!(ready(&mut kit, chain[0], 8), 1);
            assert_eq!(ready(&mut kit, chain[0], 8), 0, "no edge");
        }
    }

    #[test]
    fn what_did_not_fit_is_reported_the_next_time() {
        let mut kit = Kit::new();
        let set = epoll(&mut kit);
        for events in [EDGE, libc::EPOLLIN] {
            let (read, to) = kit.pipe(0);
            add(&mut kit, set, read, events);
            write(&mut kit, to, 8);
        }
        let mut data = Vec::new();
        for _ in 0..2 {
            assert_eq!(ready(&mut kit, set, 1), 1);
            data.push(kit.bytes(0xa04, 1)[0]);
        }
        assert_ne!(data[0], data[1]);
    }

    #[test]
    fn a_change_of_the_entry_reports_it_again() {
        let mut kit = Kit::new();
        let (read, to) = kit.pipe(0);
        let set = epoll(&mut kit);
        add(&mut kit, set, read, EDGE | libc::EPOLLONESHOT);
        for _ in 0..2 {
            write(&mut kit, to, 8);
            assert_eq!(ready(&mut kit, set, 8), 1);
            write(&mut kit, to, 8);
            assert_eq!(ready(&mut kit, set, 8), 0, "once");
            control(
                &mut kit,
                set,
                libc::EPOLL_CTL_MOD,
                read,
                EDGE | libc::EPOLLONESHOT,
            );
        }
    }

    #[test]
    fn a_snapshot_keeps_what_is_armed() {
        let mut kit = Kit::new();
        let set = epoll(&mut kit);
        let once = EDGE | libc::EPOLLONESHOT;
        let ((one, to), (other, _)) = (kit.pipe(0), kit.pipe(0));
        add(&mut kit, set, one, once);
        add(&mut kit, set, other, once);
        write(&mut kit, to, 8);
        assert_eq!(ready(&mut kit, set, 8), 1);
        let open = kit.files.get(set as i32).unwrap();
        let watched = open
            .file
            .as_any()
            .downcast_ref::<Epoll>()
            .unwrap()
            .watched();
        let input = |index: usize| watched[index].events & libc::EPOLLIN as u32 != 0;
        assert_eq!(
            (watched[0].fd, input(0), input(1)),
            (one as i32, false, true)
        );
    }
}
