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
        let good = Descriptor {
            interrupt: true,
            ..long_copies()[0]
        };
        bench.run(&[(0, &[good]), (1, &[good])]);
    }
}

/// The host shares the eventfd's file description, so it may make it blocking, and full, at any time.
#[test]
fn a_full_blocking_eventfd_does_not_hold_the_card_up() {
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::time::Duration;
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
