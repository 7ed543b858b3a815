//! libfabric on our verbs. Alone, in a test program of its own: every 10 ms its ofi_rxm looks whether the peer has
//! gone, and before that only as far into the completion queue as it had come when it last ran. A server that was kept
//! from running for so long loses the last message of a client that is done (FI_OFI_RXM_CM_PROGRESS_INTERVAL,
//! fi_rxm(7)), on any HCA.

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
