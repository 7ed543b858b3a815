//! Registered memory: the own windows, and what is known of the peer's.
//!
//! ```text
//! register    Window .. --->  the peer can use it
//!                       <---  Windowed, if bytes go by lanes: only then is the program told
//! unregister  Unwindow  --->  nothing new; what is under way ends
//!                       <---  Unwindowed {held: false}: the memory goes
//!                             Unwindowed {held: true}: it is mapped there, and stays
//!                       <---  Released: now it goes
//! register where such a window is, with lanes
//!             Fence     --->
//!                       <---  Fenced: behind what was released before, and now it is free, or not
//! ```
//!
//! What must stay true: a window's pages stay until nobody uses them: every copy of either side that had begun has
//! ended, and the peer has nothing of them mapped.

use std::collections::BTreeMap;

use snaprig_wire::scif::{Body, EXTENTS_MAX, Extent, Fence, Held, PAGE};

use super::{
    BackingId, Endpoint, EndpointId, MappingId, Node, Output, PROT_READ, PROT_WRITE, RequestId,
    State, Value, fence::AfterFence,
};

/// Most extents of a peer's windows on one connection: 64 GiB in 4 KiB pieces would be a lie.
const PEER_EXTENTS_MAX: usize = 1 << 20;
/// Most mappings of one connection.
const MAPPINGS_MAX: usize = 4096;
/// Registered address spaces end here (scif_register(3)).
const OFFSETS_END: i64 = 1 << 62;

pub(super) struct Window {
    pub(super) len: u64,
    pub(super) prot: u8,
    extents: Vec<Extent>,
    pub(super) backing: Option<BackingId>,
}

/// What a program wants to register.
pub(super) struct Registration {
    pub(super) request: RequestId,
    pub(super) extents: Vec<Extent>,
    pub(super) offset: Option<i64>,
    pub(super) prot: u8,
    pub(super) backing: BackingId,
}

impl Node {
    /// Whether nothing but what the peer is known to have mapped is in the way. By lanes, the peer may have said that it has not
    /// any more before its node has.
    fn is_in_doubt(&mut self, id: EndpointId, registration: &Registration) -> bool {
        let offset = registration.offset.filter(|offset| *offset >= 0);
        let (Ok(endpoint), Some(offset)) = (self.connected(id), offset) else {
            return false;
        };
        let len = total(&registration.extents).unwrap_or(0);
        endpoint.lanes.is_some()
            && offset.checked_add_unsigned(len).is_some()
            && overlaps(&endpoint.retired, offset, len)
            && !overlaps(&endpoint.windows, offset, len)
    }

    /// Registers it; or asks the peer's node for an answer first, no matter which: what it has said before comes before that.
    pub(super) fn register(
        &mut self,
        id: EndpointId,
        registration: Registration,
    ) -> Result<Option<Value>, i32> {
        if !self.is_in_doubt(id, &registration) {
            return self.register_now(id, registration);
        }
        let number = self.next_job;
        self.next_job += 1;
        let endpoint = self.connected(id)?;
        endpoint.questioned.insert(number, registration);
        self.tell(id, Body::Fence(number, Fence::Mark));
        Ok(None)
    }

    /// The peer's node has answered; whether it was asked for that.
    pub(super) fn answered(&mut self, id: EndpointId, number: u64) -> bool {
        let endpoint = self.endpoints.get_mut(&id);
        let Some(registration) = endpoint.and_then(|it| it.questioned.remove(&number)) else {
            return false;
        };
        let request = registration.request;
        if let Some(result) = self.register_now(id, registration).transpose() {
            self.done(request, result);
        }
        true
    }

    /// Whoever fails to register something gets the memory back.
    fn register_now(
        &mut self,
        id: EndpointId,
        registration: Registration,
    ) -> Result<Option<Value>, i32> {
        let backing = registration.backing;
        let registered = self.try_register(id, registration);
        if registered.is_err() {
            self.out(Output::Release(backing));
        }
        registered
    }

    fn try_register(
        &mut self,
        id: EndpointId,
        registration: Registration,
    ) -> Result<Option<Value>, i32> {
        let Registration {
            request,
            extents,
            offset,
            prot,
            backing,
        } = registration;
        let endpoint = self.connected(id)?;
        let len = total(&extents).ok_or(libc::EINVAL)?;
        if len == 0 || prot == 0 || prot & !(PROT_READ | PROT_WRITE) != 0 {
            return Err(libc::EINVAL);
        }
        let is_free = |offset| {
            !overlaps(&endpoint.windows, offset, len) && !overlaps(&endpoint.retired, offset, len)
        };
        let offset = match offset {
            Some(offset)
                if offset < 0
                    || !(offset as u64).is_multiple_of(PAGE)
                    || offset.checked_add_unsigned(len).is_none() =>
            {
                return Err(libc::EINVAL);
            }
            Some(offset) if offset.saturating_add_unsigned(len) > OFFSETS_END => {
                return Err(libc::EADDRINUSE);
            }
            Some(offset) if is_free(offset) => offset,
            Some(_) => return Err(libc::EADDRINUSE),
            None => free_offset(endpoint, len).ok_or(libc::ENOMEM)?,
        };
        let window = Window {
            len,
            prot,
            extents: extents.clone(),
            backing: Some(backing),
        };
        endpoint.windows.insert(offset, window);
        let has_lanes = endpoint.lanes.is_some();
        if has_lanes {
            endpoint.registering.push_back((Some(request), offset));
        }
        let parts = extents.chunks(EXTENTS_MAX);
        let (mut at, count) = (offset, parts.len());
        for (index, part) in parts.enumerate() {
            let bytes = total(part).ok_or(libc::EINVAL)?;
            let more = index + 1 < count;
            self.tell(
                id,
                Body::Window {
                    offset: at,
                    prot,
                    more,
                    extents: part.to_vec(),
                },
            );
            at += bytes as i64;
        }
        // By the nodes, what is sent from now on comes behind it.
        Ok((!has_lanes).then_some(Value::Offset(offset)))
    }

    /// The peer knows the windows up to one more.
    pub(super) fn windowed(&mut self, id: EndpointId) {
        let endpoint = self.endpoints.get_mut(&id);
        let known = endpoint.and_then(|endpoint| endpoint.registering.pop_front());
        if let Some((Some(request), offset)) = known {
            self.done(request, Ok(Value::Offset(offset)));
        }
    }

    /// Who waits for the peer to know a window does so no longer: it is registered all the same.
    pub(super) fn end_registering(&mut self, request: RequestId) -> bool {
        let mut all = self
            .endpoints
            .values_mut()
            .flat_map(|it| &mut it.registering);
        let Some((waits, offset)) = all.find(|(waits, _)| *waits == Some(request)) else {
            return false;
        };
        *waits = None;
        let offset = *offset;
        self.done(request, Ok(Value::Offset(offset)));
        true
    }

    pub(super) fn unregister(
        &mut self,
        request: RequestId,
        id: EndpointId,
        offset: i64,
        len: u64,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        let end = offset.checked_add_unsigned(len).ok_or(libc::EINVAL)?;
        if len == 0 || offset < 0 || !(offset as u64 | len).is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        // Whole windows only, as scif_unregister(3) demands.
        let mut at = offset;
        if let Some((start, window)) = endpoint.windows.range(..offset).next_back()
            && start + window.len as i64 > offset
        {
            return Err(libc::EINVAL);
        }
        while at < end {
            let window = endpoint.windows.get(&at).ok_or(libc::ENXIO)?;
            at += window.len as i64;
        }
        if at != end {
            return Err(libc::EINVAL);
        }
        match endpoint.unregistering.entry((offset, len)) {
            // Another thread is at it.
            std::collections::btree_map::Entry::Occupied(_) => return Err(libc::ENXIO),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(Some(request)),
        };
        self.tell(id, Body::Unwindow { offset, len });
        Ok(None)
    }

    /// The peer takes windows back: nothing new uses them, and it is told when what is under way has
    /// ended.
    pub(super) fn unwindow(&mut self, id: EndpointId, offset: i64, len: u64) {
        self.recall(id, true);
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let Some(end) = offset.checked_add_unsigned(len) else {
            return;
        };
        endpoint
            .peer_windows
            .retain(|at, _| *at < offset || *at >= end);
        let mark = endpoint.started;
        if self
            .after(id, mark, AfterFence::Unwindowed(offset, len))
            .is_err()
        {
            self.reset(id);
        }
    }

    pub(super) fn unwindow_answer(&mut self, id: EndpointId, offset: i64, len: u64) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let mut mapped = endpoint.mappings.values();
        let held = mapped.any(|(at, bytes)| touches((offset, len), (*at, *bytes)));
        if held {
            endpoint.held.push((offset, len));
        }
        self.tell(id, Body::Unwindowed { offset, len, held });
    }

    pub(super) fn unwindowed(&mut self, id: EndpointId, offset: i64, len: u64, held: bool) {
        self.recall(id, true);
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        // Nobody asked: the peer is broken, but harms only itself.
        let Some(request) = endpoint.unregistering.remove(&(offset, len)) else {
            return;
        };
        let mark = endpoint.started;
        let then = AfterFence::Retire {
            offset,
            len,
            held,
            request,
        };
        if self.after(id, mark, then).is_err() {
            self.retire(id, offset, len, held, request);
        }
    }

    /// Neither side copies to or from these windows any more.
    pub(super) fn retire(
        &mut self,
        id: EndpointId,
        offset: i64,
        len: u64,
        held: bool,
        request: Option<RequestId>,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let mut gone = take_range(&mut endpoint.windows, offset, len);
        if held {
            endpoint.retired.append(&mut gone);
        }
        self.release(gone);
        if let Some(request) = request {
            self.done(request, Ok(Value::Gone { held }));
        }
    }

    /// The peer has unmapped what it held.
    pub(super) fn released(&mut self, id: EndpointId, offset: i64, len: u64) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let gone = take_range(&mut endpoint.retired, offset, len);
        endpoint
            .peer_holds
            .retain(|what| what.range() != (offset, len));
        self.release(gone);
        self.try_finish_close(id);
    }

    pub(super) fn release(&mut self, windows: BTreeMap<i64, Window>) {
        for backing in windows.into_values().filter_map(|window| window.backing) {
            self.out(Output::Release(backing));
        }
    }

    pub(super) fn map(
        &mut self,
        id: EndpointId,
        offset: i64,
        len: u64,
        prot: u8,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        if len == 0 || prot & !(PROT_READ | PROT_WRITE) != 0 {
            return Err(libc::EINVAL);
        }
        let mut extents = slice(&endpoint.peer_windows, offset, len, 0)?;
        for bit in [PROT_READ, PROT_WRITE] {
            if prot & bit != 0 {
                extents = slice(&endpoint.peer_windows, offset, len, bit)?;
            }
        }
        let mapping = self.add_mapping(id, (offset, len))?;
        Ok(Some(Value::Mapped { mapping, extents }))
    }

    /// A new mapping of memory of the peer's.
    pub(super) fn add_mapping(
        &mut self,
        id: EndpointId,
        range: (i64, u64),
    ) -> Result<MappingId, i32> {
        let mapping = self.next_job;
        let endpoint = self.connected(id)?;
        if endpoint.mappings.len() >= MAPPINGS_MAX {
            return Err(libc::ENOMEM);
        }
        endpoint.mappings.insert(mapping, range);
        self.next_job += 1;
        self.mappings.insert(mapping, id);
        Ok(mapping)
    }

    pub(super) fn unmapped(&mut self, mapping: MappingId) {
        let Some(id) = self.mappings.remove(&mapping) else {
            return;
        };
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let gone = endpoint.mappings.remove(&mapping).map(Held::of);
        let mapped: Vec<_> = endpoint.mappings.values().copied().collect();
        let is_free = |range: &(i64, u64)| !mapped.iter().any(|other| touches(*range, *other));
        let (free, held) = std::mem::take(&mut endpoint.held)
            .into_iter()
            .partition::<Vec<_>, _>(is_free);
        endpoint.held = held;
        let over = gone.filter(|what| endpoint.closed_sent && !endpoint.has_mapped(*what));
        for (offset, len) in free.into_iter().chain(over.map(Held::range)) {
            self.tell(id, Body::Released { offset, len });
        }
        self.try_finish_close(id);
    }

    pub(super) fn peer_window(
        &mut self,
        id: EndpointId,
        offset: i64,
        prot: u8,
        more: bool,
        extents: Vec<Extent>,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        if endpoint.state != State::Connected {
            return;
        }
        let held: usize = endpoint
            .peer_windows
            .values()
            .map(|w| w.extents.len())
            .sum();
        let len = total(&extents).filter(|len| *len > 0 && offset >= 0);
        let Some(len) = len.filter(|_| held + extents.len() <= PEER_EXTENTS_MAX) else {
            return self.reset(id);
        };
        let continued = endpoint.peer_window_part.take().filter(|start| {
            let end = |window: &Window| start + window.len as i64;
            endpoint
                .peer_windows
                .get(start)
                .is_some_and(|window| end(window) == offset)
        });
        if overlaps(&endpoint.peer_windows, offset, len) {
            return self.reset(id);
        }
        match continued {
            Some(start) => {
                if let Some(window) = endpoint.peer_windows.get_mut(&start) {
                    window.len += len;
                    window.extents.extend(extents);
                }
                endpoint.peer_window_part = more.then_some(start);
            }
            None => {
                endpoint.peer_windows.insert(
                    offset,
                    Window {
                        len,
                        prot,
                        extents,
                        backing: None,
                    },
                );
                endpoint.peer_window_part = more.then_some(offset);
            }
        }
        if endpoint.lanes.is_some() && !more {
            self.tell(id, Body::Windowed);
        }
    }
}

/// After the last window, or in a gap where there is nothing after it.
fn free_offset(endpoint: &Endpoint, len: u64) -> Option<i64> {
    let fits = |offset: i64| {
        offset
            .checked_add_unsigned(len)
            .filter(|end| *end <= OFFSETS_END)
    };
    let both = [&endpoint.windows, &endpoint.retired];
    let ends = both.iter().filter_map(|windows| {
        let (start, window) = windows.last_key_value()?;
        Some(start + window.len as i64)
    });
    let last = ends.max().unwrap_or(PAGE as i64);
    if fits(last).is_some() {
        return Some(last);
    }
    let mut at = PAGE as i64;
    loop {
        let blocking = both.iter().find_map(|windows| {
            let end = at.checked_add_unsigned(len)?;
            let (start, window) = windows.range(..end).next_back()?;
            let window_end = start + window.len as i64;
            (window_end > at).then_some(window_end)
        });
        match blocking {
            Some(end) => at = end,
            None => return fits(at).map(|_| at),
        }
    }
}

fn touches(one: (i64, u64), other: (i64, u64)) -> bool {
    let end = |(offset, len): (i64, u64)| offset.saturating_add_unsigned(len);
    one.0 < end(other) && other.0 < end(one)
}

fn take_range(windows: &mut BTreeMap<i64, Window>, offset: i64, len: u64) -> BTreeMap<i64, Window> {
    let end = offset.saturating_add_unsigned(len);
    let inside = windows.range(offset..end.max(offset)).map(|(at, _)| *at);
    let inside: Vec<i64> = inside.collect();
    inside
        .into_iter()
        .filter_map(|at| windows.remove_entry(&at))
        .collect()
}

/// Bytes of all extents; `None` if one is not whole pages or the sum makes no sense.
fn total(extents: &[Extent]) -> Option<u64> {
    extents.iter().try_fold(0_u64, |sum, extent| {
        let sound = extent.len > 0
            && extent.len % PAGE == 0
            && extent.address % PAGE == 0
            && extent.address.checked_add(extent.len)? <= 1 << 40;
        sum.checked_add(extent.len)
            .filter(|sum| sound && *sum <= 1 << 40)
    })
}

fn overlaps(windows: &BTreeMap<i64, Window>, offset: i64, len: u64) -> bool {
    let Some(end) = offset.checked_add_unsigned(len) else {
        return true;
    };
    windows
        .range(..end)
        .next_back()
        .is_some_and(|(start, window)| start + window.len as i64 > offset)
}

/// The extents of a range that may span adjacent windows, all of which allow `prot` (0: whatever they
/// allow).
pub(super) fn slice(
    windows: &BTreeMap<i64, Window>,
    offset: i64,
    len: u64,
    prot: u8,
) -> Result<Vec<Extent>, i32> {
    let end = offset.checked_add_unsigned(len).ok_or(libc::ENXIO)?;
    let (mut at, mut found) = (offset, Vec::new());
    while at < end {
        let (start, window) = windows.range(..=at).next_back().ok_or(libc::ENXIO)?;
        let window_end = start + window.len as i64;
        if at >= window_end {
            return Err(libc::ENXIO);
        }
        if window.prot & prot != prot {
            return Err(libc::EACCES);
        }
        let part = (end.min(window_end) - at) as u64;
        found.extend(cut(&window.extents, (at - start) as u64, part).ok_or(libc::ENXIO)?);
        at += part as i64;
    }
    Ok(found)
}

/// `len` bytes of the extents, from `skip` on.
pub(super) fn cut(extents: &[Extent], mut skip: u64, mut len: u64) -> Option<Vec<Extent>> {
    let mut found = Vec::new();
    for extent in extents {
        if len == 0 {
            break;
        }
        if skip >= extent.len {
            skip -= extent.len;
            continue;
        }
        let part = len.min(extent.len - skip);
        found.push(Extent {
            address: extent.address + skip,
            len: part,
        });
        (skip, len) = (0, len - part);
    }
    (len == 0).then_some(found)
}
