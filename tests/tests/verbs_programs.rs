//! More programs that others built for InfiniBand, middleware and benchmarks, unmodified; and a few of
//! ours that do as such programs do.

mod fabric;

use std::{path::Path, process::Output};

use fabric::{Fabric, assert_success, free_port, installed, text, wait_for_listener};

/// What a C program needs to be compiled.
const VERBS_H: &str = "/usr/include/infiniband/verbs.h";
/// The library that gives TCP programs rsockets.
const RSOCKETS: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Is this file there? Says that its tests are skipped if not.
fn exists(file: &str) -> bool {
    let there = Path::new(file).is_file();
    if !there {
        println!("skipped: no {file} (ci/setup installs it)");
    }
    there
}

/// Runs a program of `tests/verbs` in a fabric of these arguments, and by LD_LIBRARY_PATH alone too.
fn run_ours(name: &str, arguments: &[&str]) -> String {
    let scratch = tempfile::tempdir().expect("a directory");
    let program = scratch.path().join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("verbs")
        .join(name);
    fabric::compile(&sources, &program);
    let program = program.to_str().expect("a name");
    let fabric = Fabric::new(arguments);
    let mut output = None;
    for program in [&[program][..], &["env", "-u", "LD_PRELOAD", program]] {
        let ran = fabric.start(program).output();
        assert_success(name, std::slice::from_ref(&ran));
        output = Some(text(&ran));
    }
    fabric.ended();
    output.expect("it ran")
}

/// Runs a server that listens at a TCP port, and its client; both must end well.
fn serve(fabric: &Fabric, port: u16, server: &[&str], client: &[&str]) -> [Output; 2] {
    let server_runs = fabric.start(server);
    wait_for_listener(port);
    let client = fabric.start(client).output();
    let outputs = [server_runs.output(), client];
    assert_success(&server.join(" "), &outputs);
    outputs
}

#[test]
fn functions_are_found_by_name_and_version() {
    if exists(VERBS_H) {
        assert_eq!(run_ours("versions", &[]), "1.4.100\n");
    }
}

#[test]
fn all_hcas_talk_to_all_at_once() {
    if exists(VERBS_H) {
        let text = run_ours("pairs", &["--hcas", "8", "--model", "AB"]);
        assert_eq!(text, "8 HCAs, 36 pairs\n");
    }
}

#[test]
fn the_first_and_the_last_hca_of_64_talk() {
    if !installed("ibv_rc_pingpong") {
        return;
    }
    for model in ["A", "B"] {
        let fabric = Fabric::new(&["--hcas", "64", "--model", model]);
        let port = free_port();
        let port_text = port.to_string();
        let program = |hca| {
            let options = ["-p", &port_text, "-c", "-n", "50", "-m", "2048", "-g", "0"];
            [&["ibv_rc_pingpong", "-d", hca], &options[..]].concat()
        };
        let client = [&program("snaprig_63")[..], &["127.0.0.1"]].concat();
        serve(&fabric, port, &program("snaprig_0"), &client);
        let list = fabric.start(&["ibv_devinfo", "-l"]).output();
        assert!(text(&list).contains("64 HCAs found"), "{}", text(&list));
        fabric.ended();
    }
}

#[test]
fn ucx_runs() {
    if !installed("ucx_perftest") {
        return;
    }
    for model in ["A", "B"] {
        let fabric = Fabric::new(&["--model", model]);
        let devices = text(&fabric.start(&["ucx_info", "-d"]).output());
        for transport in ["rc_verbs", "ud_verbs"] {
            let lines = format!("Transport: {transport}\n#         Device: snaprig_0:1\n");
            assert!(devices.contains(&lines), "{devices}");
        }
        // rc_v is rc_verbs, with ud_verbs to connect.
        for (transport, test, bytes) in [
            ("rc_v", "tag_lat", "8"),
            ("rc_v", "tag_bw", "100000"),
            ("rc_v", "ucp_put_lat", "4096"),
            ("rc_v", "ucp_put_bw", "100000"),
            ("rc_v", "ucp_get", "100000"),
            ("rc_v", "ucp_am_bw", "4096"),
            ("rc_v", "ucp_fadd", "8"),
            ("rc_v", "stream_bw", "4096"),
            ("ud_v", "tag_lat", "8"),
            ("ud_v", "tag_bw", "10000"),
        ] {
            let environment = format!("UCX_TLS={transport},self");
            let options = ["-t", test, "-s", bytes, "-n", "100", "-w", "10"];
            let program = ["env", &environment, "ucx_perftest"];
            let outputs = fabric.pair(free_port(), &[&program[..], &options].concat());
            assert_success(&format!("{transport} {test}"), &outputs);
            let all = outputs.iter().map(text).collect::<String>();
            assert!(
                all.contains("Final:") && !all.contains("ERROR"),
                "{transport} {test}: {all}"
            );
        }
        fabric.ended();
    }
}

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

#[test]
fn tcp_programs_run_over_rsockets() {
    if !installed("iperf") || !exists(RSOCKETS) {
        return;
    }
    // It stands before our library, and calls what that stands before.
    let fabric = Fabric::new(&[]);
    let port = free_port();
    let port_text = port.to_string();
    let program = |options: &[&str]| {
        let iperf = [
            "sh",
            "-c",
            "export LD_PRELOAD=$1:$LD_PRELOAD; shift; exec \"$@\"",
            "sh",
        ];
        fabric.start(&[&iperf, &[RSOCKETS, "iperf", "-p", &port_text], options].concat())
    };
    let mut server = program(&["-s"]);
    // Of the connection manager; nobody listens for TCP.
    fabric.wait_for_listener(port);
    let client = program(&["-c", "127.0.0.1", "-n", "20M"]).output();
    assert_success("iperf", std::slice::from_ref(&client));
    assert!(text(&client).contains("20.0 MBytes"), "{}", text(&client));
    server.kill();
    drop(server);
    fabric.ended();
}
