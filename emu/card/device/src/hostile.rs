//! The device and a hostile host, where it takes a look inside to tell. What hostile hosts do at random is a
//! fuzz target (`tests/fuzz/src/driver.rs`).

use std::{os::fd::AsFd, sync::mpsc};

use snaprig_pci::{host::HostDevice, vfio_user_client::VfioUserClient};

use super::{
    tests::{BYTES, Bench},
    *,
};

/// Copies of 1 MiB within card memory, a batch of them.
fn long_copies() -> Vec<Descriptor> {
    let copy = Descriptor {
        src: BYTES - (2 << 20),
        dst: BYTES - (1 << 20),
        len: 1 << 20,
        interrupt: false,
    };
    vec![copy; 64]
}

/// The last of them, with an interrupt.
fn last(copies: &[Descriptor]) -> Descriptor {
    Descriptor {
        interrupt: true,
        ..copies[copies.len() - 1]
    }
}

#[test]
fn a_new_host_finds_a_clean_device_and_the_old_ones_dma_over() {
    let mut bench = Bench::new();
    let next_host = |bench: &mut Bench| {
        bench.host = None;
        bench.host = Some(VfioUserClient::connect(&bench.socket).unwrap());
    };
    for round in 0..8 {
        for c in 0..bar4::HOST_DMA_CHANNELS {
            bench.start(c, &long_copies());
        }
        for ring in [spad::RING_TO_CARD, spad::RING_TO_HOST] {
            let page = u64::from(bench.read(bar4::SPAD0 + 4 * ring));
            bench.device.memory.store(page * PAGE, u64::MAX);
        }
        match round % 2 {
            0 => next_host(&mut bench),
            _ => bench.host().reset().unwrap(),
        }
        // The reply to this is sent after the old host was detached.
        bench.read(bar4::SICR0);
        assert!(bench.device.channels.iter().all(|c| !lock(c).running()));
        next_host(&mut bench);
        assert_eq!(bench.device.ring_to_card().pop(), Ok(None));
        assert_eq!(bench.device.ring_to_host().pop(), Ok(None));
        let channels = 0..bar4::HOST_DMA_CHANNELS;
        assert!(
            channels
                .into_iter()
                .all(|c| bench.read(bar4::dma_register(c, bar4::DTPR)) == 0)
        );
        let good = last(&long_copies());
        bench.run(&[(0, &[good]), (1, &[good])]);
    }
}

/// The host shares the eventfd's file description, so it may make it blocking, and full, at any time.
#[test]
fn a_full_blocking_eventfd_does_not_hold_the_card_up() {
    use std::time::Duration;

    use rustix::fs::{OFlags, fcntl_setfl};
    let bench = Bench::new();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    bench.host().set_vector(0, event.as_fd()).unwrap();
    bench.write(bar4::SICE0, cause::STATE);
    assert_eq!(bench.read(bar4::SICE0), cause::STATE);
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fcntl_setfl(&event, OFlags::empty()).unwrap();
    let (device, (send, raised)) = (bench.device.clone(), mpsc::channel());
    let card = std::thread::spawn(move || {
        device.set_state(spad::STATE_ONLINE);
        send.send(()).unwrap();
    });
    let raised = raised.recv_timeout(Duration::from_secs(20));
    // Whoever is held up goes on now.
    rustix::io::read(&event, &mut [0; 8]).unwrap();
    card.join().unwrap();
    assert_eq!(raised, Ok(()));
    assert_eq!(bench.read(bar4::SICR0), cause::STATE);
}

/// One client at a time: the second waits until the first is gone, and finds nothing of it. One that
/// only connects, or says half of something, holds nobody up once it leaves.
#[test]
fn a_second_client_waits_for_the_first_and_half_a_message_hurts_nobody() {
    use std::{io::Write, os::unix::net::UnixStream};
    let mut bench = Bench::new();
    bench.start(0, &long_copies());
    let mut silent = UnixStream::connect(&bench.socket).unwrap();
    silent.write_all(&[0, 0, 1]).unwrap();
    let socket = bench.socket.clone();
    let (send, connected) = mpsc::channel();
    let second = std::thread::spawn(move || {
        let client = VfioUserClient::connect(&socket).unwrap();
        send.send(()).unwrap();
        client
    });
    // The first is still served, as if nobody waited.
    assert_eq!(bench.read(bar4::SPAD0 + 4 * spad::NODE), 1);
    assert!(connected.try_recv().is_err());
    drop(silent);
    bench.host = None;
    bench.host = Some(second.join().unwrap());
    assert!(bench.device.channels.iter().all(|c| !lock(c).running()));
    bench.run(&[(0, &[last(&long_copies())])]);
}

/// Resets in a row, by both ways, with transfers between host and card under way.
#[test]
fn a_storm_of_resets_in_mid_transfer_leaves_a_device_that_works() {
    const IOVA: u64 = 1 << 38;
    let bench = Bench::new();
    let host = CardMemory::new(BYTES).unwrap();
    let map = || bench.host().dma_map(IOVA, BYTES, host.memfd(), 0).unwrap();
    map();
    let copy = |src, dst| Descriptor {
        src,
        dst,
        len: 16 * PAGE as u32,
        interrupt: true,
    };
    let (window, card) = (HOST_BASE + IOVA, BYTES - (1 << 20));
    let transfers = [copy(window, card), copy(card, window)].repeat(30);
    for round in 0..100 {
        for c in 0..bar4::HOST_DMA_CHANNELS {
            bench.start(c, &transfers);
        }
        match round % 2 {
            0 => bench.write(bar4::RGCR, bar4::RGCR_RESET),
            _ => bench.host().reset().unwrap(),
        }
        // The reply comes after the reset: nothing of before it goes on, or is announced.
        assert_eq!(bench.read(bar4::SICR0), 0);
        assert!(bench.device.channels.iter().all(|c| !lock(c).running()));
    }
    bench.run(&[(0, &[last(&long_copies())])]);
}
