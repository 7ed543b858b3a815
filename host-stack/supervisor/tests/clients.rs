//! Who asks a supervisor for something, and what becomes of the supervisor meanwhile.

mod common;

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
};

use common::{Job, wait_until};

#[test]
fn a_silent_client_and_a_slow_one_delay_neither_others_nor_the_end() {
    let mut job = Job::launch(&["sleep", "1000"]);
    wait_until("it answers", || job.answers());
    let connect = || UnixStream::connect(job.path("job/control")).unwrap();
    let mut silent: Vec<_> = (0..3).map(|_| connect()).collect();
    let mut slow = connect();
    for byte in b"\"Sta" {
        slow.write_all(&[*byte]).unwrap();
        assert!(job.answers());
    }
    silent.push(slow);
    // They came before those that were answered, and have not been given up for it.
    for client in &mut silent {
        client.set_nonblocking(true).unwrap();
        let read = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::WouldBlock));
    }
    let program = *job.processes().last().unwrap();
    // SAFETY: no memory of this process is involved; the process is the job's, which has not been waited for while its
    // supervisor answers.
    unsafe { libc::kill(program, libc::SIGKILL) };
    assert_eq!(job.ended(), 128 + libc::SIGKILL);
}

#[test]
fn a_slow_client_is_answered_in_the_end() {
    let job = Job::launch(&["sleep", "1000"]);
    wait_until("it answers", || job.answers());
    let mut slow = UnixStream::connect(job.path("job/control")).unwrap();
    for byte in b"\"Status\"\n" {
        slow.write_all(&[*byte]).unwrap();
        assert!(job.answers());
    }
    let mut reply = String::new();
    slow.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("{\"Status\":"), "{reply}");
}
