//! What the compiler cannot check: that memory which an HCA knows stays where it is, and what there is no wrapper for.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::null_mut,
    sync::Arc,
};

use rdma_mummy_sys::{ibv_ack_cq_events, ibv_get_cq_event, ibv_req_notify_cq};
use sideway::ibverbs::{
    AccessFlags,
    completion::{BasicCompletionQueue, CompletionChannel, CompletionQueue},
    memory_region::{MemoryRegion, RegisterMemoryRegionError},
    protection_domain::ProtectionDomain,
    queue_pair::{BasicPostSendGuard, LocalBufferHandle, SetScatterGatherEntry},
};
use vm_memory::VolatileSlice;

use crate::driver::memory::Memory;

/// Has a device know a pool. The pool must be kept for as long as the region.
pub fn register(
    domain: &Arc<ProtectionDomain>,
    memory: &Memory,
    access: AccessFlags,
) -> Result<Arc<MemoryRegion>, RegisterMemoryRegionError> {
    let region = memory.region();
    // SAFETY: these bytes are one mapping, which stays for as long as the memory does: [`super::Device`] has both, and drops
    // the region first. The device reads and writes chunks at any time, as the other side says; in Rust they are copied by
    // address alone (`vm_memory`), and no reference to them is ever there. What a source lends it only reads.
    unsafe { domain.reg_mr(region.as_ptr() as usize, region.size(), access) }
}

/// Has a work request read, or write, this part of a pool.
pub fn use_part(
    request: LocalBufferHandle<'_, BasicPostSendGuard<'_>>,
    region: &MemoryRegion,
    part: &VolatileSlice<'_>,
) {
    let address = part.ptr_guard_mut().as_ptr() as u64;
    // SAFETY: the part is of the pool that the region is of, or the device refuses it by its key; and it is never referred to
    // in Rust, or only read, as above.
    unsafe { request.setup_sge(region.lkey(), address, part.len() as u32) }
}

/// The next completion is an event of the queue's channel.
pub fn arm(queue: &BasicCompletionQueue) -> io::Result<()> {
    // SAFETY: the queue is there for as long as it is borrowed.
    match unsafe { ibv_req_notify_cq(queue.cq().as_ptr(), 0) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Takes an event of this channel, which does not block, if there is one. The queue is the only one of the channel.
pub fn take_event(channel: &CompletionChannel, queue: &BasicCompletionQueue) {
    let (mut of, mut context) = (null_mut(), null_mut());
    // SAFETY: the channel and its queue are there for as long as they are borrowed, and each event that is taken is of that
    // queue, which is told so once.
    unsafe {
        let channel = channel.comp_channel().as_ptr();
        if ibv_get_cq_event(channel, &raw mut of, &raw mut context) == 0 {
            ibv_ack_cq_events(queue.cq().as_ptr(), 1);
        }
    }
}

/// What becomes readable with an event of a channel.
pub fn descriptor(channel: &CompletionChannel) -> BorrowedFd<'_> {
    // SAFETY: it is open for as long as the channel is there.
    unsafe { BorrowedFd::borrow_raw(channel.as_raw_fd()) }
}
