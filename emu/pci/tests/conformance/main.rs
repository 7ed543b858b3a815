//! What every [`HostDevice`] must do, asked of devices over vfio-user and over VFIO alike.
//!
//! A device that vfio-user serves is always there ([`served`]). Those that are reached over VFIO are
//! named by `SNAPRIG_TEST_VFIO`, by address; they must be of a kind that [`vfio`] describes. `ci/vfio`
//! runs this program with some in an emulated machine.

mod over_vfio;
mod served;
mod subject;
mod vfio;

use std::{
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::Arc,
};

use rustix::{
    event::{EventfdFlags, PollFlags, eventfd},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
};
use snaprig_pci::{
    host::{DeviceError, HostDevice},
    mic::Mic,
};

use crate::subject::{COPY_MAX, Interrupts, Subject, is_ready};

const PAGE: u64 = 4096;
/// A DMA address that all devices have, and that nothing else uses.
const IOVA: u64 = 0x10_0000;

/// Memory that can be mapped for a device.
fn memory(pages: u64) -> File {
    let fd = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, pages * PAGE).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd.into()
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Bytes of which no two pages are alike.
fn pattern(seed: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| seed ^ (i + i / 251) as u8).collect()
}

fn content(memory: &File, offset: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    memory.read_exact_at(&mut content, offset).unwrap();
    content
}

fn map(device: &dyn HostDevice, iova: u64, memory: &File, offset: u64, pages: u64) {
    let mapped = device.dma_map(iova, pages * PAGE, memory.as_fd(), offset);
    mapped.unwrap();
}

/// The error of a call that must not succeed.
fn refusal<T>(result: Result<T, DeviceError>) -> DeviceError {
    match result {
        Ok(_) => panic!("was not refused"),
        Err(error) => error,
    }
}

fn configuration_space_names_the_device_and_keeps_what_is_written(subject: &Subject) {
    let device = &*subject.device;
    let mut id = [0; 4];
    device.config_read(0, &mut id).unwrap();
    assert_eq!(u32::from_le_bytes(id), subject.kind.id);
    // Interrupt line, a byte for software alone (PCI Local Bus 3.0, 6.2.4).
    for line in [0x5a, 0xff, 7] {
        device.config_write(0x3c, &[line]).unwrap();
        let mut back = [0];
        device.config_read(0x3c, &mut back).unwrap();
        assert_eq!(back, [line]);
    }
    device.config_write(0, &[0; 4]).unwrap();
    device.config_read(0, &mut id).unwrap();
    assert_eq!(u32::from_le_bytes(id), subject.kind.id);
}

fn registers_keep_what_is_written_until_the_device_is_reset(subject: &Subject) {
    let Some(register) = &subject.kind.register else {
        return;
    };
    let device = &*subject.device;
    let read = || device.read32(register.bar, register.offset).unwrap();
    for value in [1, 0xdead_beef, 0x1234_5678] {
        device
            .write32(register.bar, register.offset, value)
            .unwrap();
        assert_eq!(read(), (register.reads_as)(value));
    }
    device.reset().unwrap();
    let after = register
        .after_reset
        .unwrap_or((register.reads_as)(0x1234_5678));
    assert_eq!(read(), after);
    device.write32(register.bar, register.offset, 99).unwrap();
    assert_eq!(read(), (register.reads_as)(99));
}

fn what_is_not_there_is_refused_and_the_device_works_on(subject: &Subject) {
    let device = &*subject.device;
    let mut bytes = [0; 4];
    for bar in [5, 6, 7, 9, u32::MAX] {
        refusal(device.bar_read(bar, 0, &mut bytes));
        refusal(device.map_bar(bar));
    }
    for offset in [1 << 40, u64::MAX - 1] {
        refusal(device.bar_read(subject.kind.bar, offset, &mut bytes));
    }
    refusal(device.set_vector(10_000, event().as_fd()));
    refusal(device.dma_unmap(IOVA, PAGE));
    device.config_read(0, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), subject.kind.id);
}

fn a_bar_that_is_memory_is_the_same_mapped_and_read(subject: &Subject) {
    let Some(bar) = subject.kind.memory else {
        return;
    };
    let device = &*subject.device;
    let mapping = device.map_bar(bar).unwrap();
    let end = mapping.bytes();
    assert!(mapping.pointer(end - 8, 8).is_some() && mapping.pointer(end - 8, 9).is_none());
    for at in [0, 2 * PAGE, end - 16] {
        let written = pattern(at as u8, 16);
        assert!(mapping.write(at, &written));
        for width in [1, 2, 4, 8] {
            let mut read = [0; 8];
            for part in (0..16).step_by(width) {
                let read = &mut read[..width];
                device.bar_read(bar, at + part as u64, read).unwrap();
                assert_eq!(read, &written[part..part + width]);
            }
        }
        device.bar_write(bar, at + 8, &[1, 2, 3, 4]).unwrap();
        // A write is posted; a read comes after it.
        device.bar_read(bar, at, &mut [0; 4]).unwrap();
        let pointer = mapping.pointer(at + 8, 4).unwrap().cast::<[u8; 4]>();
        // SAFETY: four bytes of the mapping, which lives.
        assert_eq!(unsafe { pointer.read_volatile() }, [1, 2, 3, 4]);
    }
}

/// Waits for one interrupt.
fn interrupt(device: &dyn HostDevice, how: &Interrupts, vector: u32, to: &OwnedFd) {
    (how.raise)(device, vector);
    assert!(is_ready(to.as_fd(), PollFlags::IN, true), "no interrupt");
    let mut count = [0; 8];
    rustix::io::read(to, &mut count).unwrap();
    (how.clear)(device);
    device.unmask().unwrap();
}

fn each_vector_signals_its_own_eventfd(subject: &Subject) {
    let Some(how) = &subject.kind.interrupts else {
        return;
    };
    let device = &*subject.device;
    let mut events: Vec<_> = (0..how.vectors).map(|_| event()).collect();
    let silent = |events: &[OwnedFd]| {
        let is_silent = |event: &OwnedFd| !is_ready(event.as_fd(), PollFlags::IN, false);
        events.iter().all(is_silent)
    };
    // The highest in the middle: lower ones can follow.
    let middle = how.vectors as usize / 2;
    for vector in (middle..events.len()).chain(0..middle) {
        device
            .set_vector(vector as u32, events[vector].as_fd())
            .unwrap();
    }
    // A signal without an interrupt is allowed until here.
    for event in &events {
        let _ = rustix::io::read(event, &mut [0; 8]);
    }
    for round in 0..3 {
        for vector in 0..events.len() {
            interrupt(device, how, vector as u32, &events[vector]);
            assert!(silent(&events), "round {round}, vector {vector}");
        }
    }
    // Another eventfd in the place of one; and all of it once more after a reset.
    let old = std::mem::replace(&mut events[0], event());
    device.set_vector(0, events[0].as_fd()).unwrap();
    interrupt(device, how, 0, &events[0]);
    assert!(silent(&[old]) && silent(&events));
    device.reset().unwrap();
    device.set_vector(0, events[0].as_fd()).unwrap();
    interrupt(device, how, 0, &events[0]);
}

fn the_device_copies_between_memory_that_is_mapped_for_it(subject: &Subject) {
    let Some(copy) = subject.kind.copy else {
        return;
    };
    let device = &*subject.device;
    let (from, to) = (memory(4), memory(4));
    let target = IOVA + 16 * PAGE;
    from.write_all_at(&pattern(3, 4 * PAGE), 0).unwrap();
    map(device, IOVA, &from, PAGE, 3);
    map(device, target, &to, 0, 4);
    // Written after it was mapped, too.
    from.write_all_at(&pattern(9, PAGE), 2 * PAGE).unwrap();
    // Across the boundaries of pages, to other places in them, and some bytes more.
    for at in [0, PAGE - 1000, 2 * PAGE - 8, 3 * PAGE - COPY_MAX] {
        copy(device, IOVA + at, target + PAGE / 2 + at, COPY_MAX);
        let expected = content(&from, PAGE + at, COPY_MAX);
        assert_eq!(content(&to, PAGE / 2 + at, COPY_MAX), expected);
    }
    assert_eq!(content(&to, 0, PAGE / 2), vec![0; PAGE as usize / 2]);
    device.dma_unmap(IOVA, 3 * PAGE).unwrap();
    device.dma_unmap(target, 4 * PAGE).unwrap();
}

fn the_device_reaches_nothing_that_is_not_mapped_for_it(subject: &Subject) {
    let Some(copy) = subject.kind.copy else {
        return;
    };
    let device = &*subject.device;
    let (mine, shared) = (memory(1), memory(1));
    let (secret, zeroes) = (pattern(77, COPY_MAX), vec![0; COPY_MAX as usize]);
    let (there, here) = (IOVA, IOVA + 16 * PAGE);
    let is_untouched = || content(&mine, 0, COPY_MAX) == secret;
    map(device, there, &mine, 0, 1);
    map(device, here, &shared, 0, 1);
    // What the IOMMU remembers of the page must be forgotten.
    copy(device, there, here, COPY_MAX);
    device.dma_unmap(there, PAGE).unwrap();

    mine.write_all_at(&secret, 0).unwrap();
    copy(device, there, here, COPY_MAX);
    let read = content(&shared, 0, COPY_MAX);
    assert_ne!(read, secret, "read what is not mapped");
    shared.write_all_at(&zeroes, 0).unwrap();
    copy(device, here, there, COPY_MAX);
    assert!(is_untouched(), "wrote what is not mapped");

    // The same address again, for other memory.
    let other = memory(1);
    map(device, there, &other, 0, 1);
    shared.write_all_at(&pattern(5, COPY_MAX), 0).unwrap();
    copy(device, here, there, COPY_MAX);
    assert!(is_untouched(), "wrote what was mapped once");
    assert_eq!(content(&other, 0, COPY_MAX), pattern(5, COPY_MAX));
}

fn memory_that_cannot_be_mapped_is_refused_and_nothing_is_left_of_it(subject: &Subject) {
    let device = &*subject.device;
    let sealed = memory(4);
    let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&open, 4 * PAGE).unwrap();
    let no_memory = event();
    map(device, IOVA, &sealed, 0, 2);
    for (iova, len, fd, offset) in [
        (IOVA + 1, PAGE, sealed.as_fd(), 0),
        (IOVA + 8 * PAGE, 100, sealed.as_fd(), 0),
        (IOVA + 8 * PAGE, 0, sealed.as_fd(), 0),
        (IOVA + 8 * PAGE, PAGE, sealed.as_fd(), 1),
        (IOVA + 8 * PAGE, 5 * PAGE, sealed.as_fd(), 0),
        (IOVA + 8 * PAGE, PAGE, sealed.as_fd(), !4095),
        (!4095, 2 * PAGE, sealed.as_fd(), 0),
        (IOVA + 8 * PAGE, PAGE, open.as_fd(), 0),
        (IOVA + 8 * PAGE, PAGE, no_memory.as_fd(), 0),
        // In the middle of what is mapped, and around its ends.
        (IOVA, 2 * PAGE, sealed.as_fd(), 0),
        (IOVA + PAGE, PAGE, sealed.as_fd(), 0),
        (IOVA - PAGE, 2 * PAGE, sealed.as_fd(), 0),
        (IOVA - PAGE, 4 * PAGE, sealed.as_fd(), 0),
    ] {
        let error = refusal(device.dma_map(iova, len, fd, offset));
        let text = error.to_string();
        assert!(
            !matches!(error, DeviceError::Gone),
            "{iova:#x} {len:#x}: {text}"
        );
    }
    for (iova, len) in [(IOVA, PAGE), (IOVA + PAGE, PAGE), (IOVA, 3 * PAGE)] {
        refusal(device.dma_unmap(iova, len));
    }
    map(device, IOVA + 8 * PAGE, &sealed, 0, 4);
    device.dma_unmap(IOVA, 2 * PAGE).unwrap();
    device.dma_unmap(IOVA + 8 * PAGE, 4 * PAGE).unwrap();
}

fn a_device_that_goes_away_is_heard_and_every_call_fails_from_then_on(subject: &Subject) {
    let device = subject.device.clone();
    map(&*device, IOVA, &memory(1), 0, 1);
    let is_gone = |wait| {
        let heard = device.hang_up().expect("it can tell");
        subject::poll_one(heard, wait)
    };
    assert!(!is_gone(false));
    let removal = subject.take_away();
    assert!(is_gone(true), "nothing was heard");
    device.close();
    let calls = [
        device.config_read(0, &mut [0; 4]),
        device.bar_read(subject.kind.bar, 0, &mut [0; 4]),
        device.bar_write(subject.kind.bar, 0, &[0; 4]),
        device.map_bar(0).map(drop),
        device.dma_map(2 * IOVA, PAGE, memory(1).as_fd(), 0),
        device.dma_unmap(IOVA, PAGE),
        device.set_vector(0, event().as_fd()),
        device.reset(),
    ];
    for (index, call) in calls.into_iter().enumerate() {
        assert!(matches!(call, Err(DeviceError::Gone)), "call {index}");
    }
    drop(removal);
}

fn the_cards_driver_refuses_what_is_no_card(subject: &Subject) {
    let device: Arc<dyn HostDevice> = subject.device.clone();
    let Err(error) = Mic::open(device, Box::new(|event| panic!("{event:?}"))) else {
        panic!("took it for a card");
    };
    assert!(!error.to_string().is_empty());
}

/// Makes two tests of each of the functions: of the device that is served, and of those that are reached over VFIO.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod by_vfio_user {$(
            #[test]
            fn $name() {
                crate::subject::served(super::$name);
            }
        )*}
        mod by_vfio {$(
            #[test]
            #[ignore = "ci/vfio runs it, on devices that SNAPRIG_TEST_VFIO names"]
            fn $name() {
                crate::subject::named(super::$name);
            }
        )*}
    };
}

on_both! {
    configuration_space_names_the_device_and_keeps_what_is_written
    registers_keep_what_is_written_until_the_device_is_reset
    what_is_not_there_is_refused_and_the_device_works_on
    a_bar_that_is_memory_is_the_same_mapped_and_read
    each_vector_signals_its_own_eventfd
    the_device_copies_between_memory_that_is_mapped_for_it
    the_device_reaches_nothing_that_is_not_mapped_for_it
    memory_that_cannot_be_mapped_is_refused_and_nothing_is_left_of_it
    a_device_that_goes_away_is_heard_and_every_call_fails_from_then_on
    the_cards_driver_refuses_what_is_no_card
}
