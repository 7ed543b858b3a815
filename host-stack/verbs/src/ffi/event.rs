//! Asynchronous events.

use std::{ffi::c_int, ptr, sync::atomic::Ordering};

use snaprig_hca::Event;
use snaprig_verbs_abi::*;

use super::{Context, Table, acknowledge, cq::Cq, minus_one, qp::Qp, srq::Srq};
use crate::protocol::{RAISED_BYTES, Raised};

/// What kind of queue an event is about; none for a port's or a device's.
pub(super) fn table_of(event: u32) -> Option<Table> {
    match Event::from_number(event)? {
        Event::CqError => Some(Table::Cq),
        Event::SrqLimit => Some(Table::Srq),
        Event::PortActive | Event::PortError | Event::DeviceFatal | Event::GidChange => None,
        _ => Some(Table::Qp),
    }
}

pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: ibv_get_async_event(3) has the program pass an open context and a place for the
    // event. read(2) writes to `bytes`, for its length. What `hand_out` finds is the exposed
    // pointer of a queue's box, which is alive while the event is counted, as the table is locked.
    unsafe {
        let ours = Context::of(context);
        loop {
            let mut bytes = [0; RAISED_BYTES];
            let got = libc::read((*context).async_fd, bytes.as_mut_ptr().cast(), bytes.len());
            if got < 0 {
                return -1;
            }
            let element = &mut (*event).element;
            if got != bytes.len() as isize {
                return minus_one(libc::EIO);
            }
            let raised = Raised::from_bytes(bytes);
            (*event).event_type = raised.event;
            let hand_out = |table, count: fn(usize)| ours.hand_out(table, raised.element, count);
            let found = match table_of(raised.event) {
                Some(Table::Cq) => hand_out(Table::Cq, |at| {
                    let cq = ptr::with_exposed_provenance::<Cq>(at);
                    (*cq).events_given.fetch_add(1, Ordering::AcqRel);
                })
                .map(|at| element.cq = ptr::with_exposed_provenance_mut(at)),
                Some(Table::Srq) => hand_out(Table::Srq, |at| {
                    let srq = ptr::with_exposed_provenance::<Srq>(at);
                    (*srq).events_given.fetch_add(1, Ordering::AcqRel);
                })
                .map(|at| element.srq = ptr::with_exposed_provenance_mut(at)),
                Some(Table::Qp) => hand_out(Table::Qp, |at| {
                    let qp = ptr::with_exposed_provenance::<Qp>(at);
                    (*qp).events_given.fetch_add(1, Ordering::AcqRel);
                })
                .map(|at| element.qp = ptr::with_exposed_provenance_mut(at)),
                None => {
                    element.port_num = raised.element as c_int;
                    Some(())
                }
            };
            // One that was destroyed meanwhile has no more to say.
            if found.is_some() {
                return 0;
            }
        }
    }
}

pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: ibv_ack_async_event(3) has the program pass an event that `ibv_get_async_event`
    // filled, so that the member of the union that its type says is the one that was written.
    // Destroying that queue waits for its events to be acknowledged before it frees the box with
    // the mutex, the condition and the count, all of which were initialised with it.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = element.cq;
                acknowledge(
                    &raw mut (*cq).mutex,
                    &raw mut (*cq).cond,
                    &raw mut (*cq).async_events_completed,
                    1,
                );
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = element.srq;
                acknowledge(
                    &raw mut (*srq).mutex,
                    &raw mut (*srq).cond,
                    &raw mut (*srq).events_completed,
                    1,
                );
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = element.qp;
                acknowledge(
                    &raw mut (*qp).mutex,
                    &raw mut (*qp).cond,
                    &raw mut (*qp).events_completed,
                    1,
                );
            }
            _ => {}
        }
    }
}
