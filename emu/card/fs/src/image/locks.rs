//! Locks in images.

use snaprig_card_driver::{errno::Errno, wait::Channel};

use crate::{
    locks::{LocksImage, Owner},
    table::Open,
};

/// What a snapshot says of the locks that go with a descriptor.
pub fn image(open: &Open, table: u64) -> LocksImage {
    open.locks()
        .map_or_else(LocksImage::default, |(locks, id)| locks.image(id, table))
}

/// The locks of a snapshot again. EAGAIN if somebody on this card is in the way.
pub fn restore(
    open: &Open,
    (table, pid): (u64, i32),
    image: &LocksImage,
    wake: &mut dyn FnMut(Channel),
) -> Result<(), Errno> {
    let Some((locks, id)) = open.locks() else {
        return Ok(());
    };
    if image.whole.is_some() && !locks.lock_whole(id, image.whole, wake) {
        return Err(Errno::EAGAIN);
    }
    let description = image
        .description
        .iter()
        .map(|r| (Owner::Description(id), r));
    let process = image.process.iter().map(|r| (Owner::Table(table, pid), r));
    for (owner, range) in description.chain(process) {
        if locks.conflict(owner, range).is_some() {
            return Err(Errno::EAGAIN);
        }
        let (start, end) = (range.start, range.end);
        locks.set(owner, (start, end), Some(range.exclusive), wake)?;
    }
    Ok(())
}
