//! An io_uring that does what it was made for and nothing else, whoever writes to its queue: seccomp(2) filters
//! do not see what a ring is asked to do.

use std::io;

use io_uring::{IoUring, register::Restriction, squeue};

/// A ring that takes operations of these codes, plain or for kernel workers, and these registrations
/// (`IORING_REGISTER_RESTRICTIONS`, io_uring_register(2)).
pub fn ring(entries: u32, operations: &[u8], registrations: &[u8]) -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(entries)?;
    let mut allowed: Vec<_> = operations
        .iter()
        .map(|code| Restriction::sqe_op(*code))
        .collect();
    allowed.extend(
        registrations
            .iter()
            .map(|code| Restriction::register_op(*code)),
    );
    allowed.push(Restriction::sqe_flags_allowed(squeue::Flags::ASYNC.bits()));
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    #[test]
    fn a_ring_does_what_it_is_for_and_nothing_else() {
        let mut ring = ring(4, &[opcode::Nop::CODE], &[]).unwrap();
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
        for (entry, result) in [(opcode::Nop::new().build(), 0), (socket, -libc::EACCES)] {
            // SAFETY: neither operation refers to memory.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            assert_eq!(
                ring.completion().next().map(|entry| entry.result()),
                Some(result)
            );
        }
        let probed = ring.submitter().register_probe(&mut io_uring::Probe::new());
        assert_eq!(probed.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
