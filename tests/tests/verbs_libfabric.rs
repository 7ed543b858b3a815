//! libfabric on our verbs. Alone, in a test program of its own: beside programs that take all processors, a server on
//! ofi_rxm now and then waited for ever for the last message of a client that had ended well, and never did alone.
//! Probably it takes a disconnection before the completions that came first (FI_OFI_RXM_CM_PROGRESS_INTERVAL: every
//! 10 ms); that it is not us who lose one has not been shown.

mod fabric;

use fabric::{Fabric, free_port, installed, serve};

#[test]
fn libfabric_runs() {
    if !installed("fi_pingpong") {
        return;
    }
    let fabric = Fabric::new(&[]);
    for (provider, endpoint, bytes) in [
        ("verbs", "msg", "64"),
        ("verbs", "msg", "100000"),
        ("verbs", "dgram", "1024"),
        ("verbs;ofi_rxm", "rdm", "64"),
        ("verbs;ofi_rxm", "rdm", "1000000"),
        ("verbs;ofi_rxd", "rdm", "4096"),
    ] {
        let port = free_port();
        let port_text = port.to_string();
        let program = [
            "fi_pingpong",
            "-c",
            "-p",
            provider,
            "-e",
            endpoint,
            "-S",
            bytes,
            "-I",
            "10",
        ];
        let server = [&program[..], &["-B", &port_text]].concat();
        let client = [&program[..], &["-P", &port_text, "127.0.0.1"]].concat();
        serve(&fabric, port, &server, &client);
    }
    fabric.ended();
}
