//! More programs that others built for InfiniBand, middleware and benchmarks, unmodified; and a few of
//! ours that do as such programs do.

mod fabric;

use std::{path::Path, process::Command};

use fabric::{Fabric, assert_success, free_port, serve, text};

/// The library that gives TCP programs rsockets.
const RSOCKETS: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Runs a program of `tests/verbs` in a fabric of these arguments, and by LD_LIBRARY_PATH alone too.
fn run_ours(name: &str, arguments: &[&str]) -> String {
    run_by(&[&[], &["env", "-u", "LD_PRELOAD"]], name, arguments)
}

/// Runs a program of `tests/verbs` behind each of these commands; what it prints.
fn run_by(commands: &[&[&str]], name: &str, arguments: &[&str]) -> String {
    let scratch = tempfile::tempdir().expect("a directory");
    let program = scratch.path().join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("verbs")
        .join(name);
    fabric::compile(&sources, &program);
    let program = program.to_str().expect("a name");
    let fabric = Fabric::new(arguments);
    let mut output = None;
    for program in commands
        .iter()
        .map(|command| [command, &[program][..]].concat())
    {
        let ran = fabric.start(&program).output();
        assert_success(name, std::slice::from_ref(&ran));
        output = Some(text(&ran));
    }
    fabric.ended();
    output.expect("it ran")
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn functions_are_found_by_name_and_version() {
    assert_eq!(run_ours("versions", &[]), "1.4.100\n");
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/rdma/rdma_cma.h"),
    ignore = "/usr/include/rdma/rdma_cma.h is not there (ci/setup)"
)]
fn who_asks_before_a_server_listens_is_heard() {
    // The connection manager's device is there for who has our library before all others.
    let said = run_by(&[&[]], "late", &[]);
    assert_eq!(said, "connected\nrejected\ngone\n");
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn code_of_libc_is_replaced_when_a_device_is_open() {
    assert_eq!(run_ours("hooks", &[]), "2400 of 2400\n");
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn all_hcas_talk_to_all_at_once() {
    let text = run_ours("pairs", &["--hcas", "8", "--model", "AB"]);
    assert_eq!(text, "8 HCAs, 36 pairs\n");
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn partitions_keep_programs_apart() {
    let said = run_ours("pkeys", &["--pkeys", "ffff,8001,0x0001,8002"]);
    let apart = |from, to| {
        format!(
            "RC {from} to {to}: sent: transport retry counter exceeded; received: nothing; counted\n\
             UD {from} to {to}: sent: success; received: nothing; counted\n"
        )
    };
    let together = |from, to| {
        let fine = "sent: success; received: success; none is bad";
        format!("RC {from} to {to}: {fine}\nUD {from} to {to}: {fine}\n")
    };
    // The third is a limited member, as the first is a full one; the fifth entry of the table is free.
    let expected = [
        together(0, 0),
        together(1, 1),
        together(1, 2),
        together(2, 1),
        apart(2, 2),
        apart(1, 3),
        apart(0, 4),
    ];
    assert_eq!(said, format!("0x8002 is at 3\n{}", expected.concat()));
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn the_first_and_the_last_hca_of_64_talk() {
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
#[cfg_attr(
    not(has_program = "ucx_perftest"),
    ignore = "ucx_perftest is not installed (ci/setup)"
)]
fn ucx_runs() {
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
#[cfg_attr(
    not(has_program = "iperf"),
    ignore = "iperf is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_file = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"),
    ignore = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so is not there (ci/setup)"
)]
fn tcp_programs_run_over_rsockets() {
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

#[test]
#[cfg_attr(
    not(has_program = "qperf"),
    ignore = "qperf is not installed (ci/setup)"
)]
fn qperf_runs() {
    let fabric = Fabric::new(&[]);
    let port = free_port();
    let port_text = port.to_string();
    let program = ["qperf", "-lp", &port_text];
    // A second each, the last one by the connection manager; then the server is told to go.
    let tests = [
        "rc_bi_bw",
        "ud_lat",
        "rc_rdma_read_bw",
        "uc_rdma_write_poll_lat",
        "ver_rc_fetch_add",
    ];
    let options = ["-t", "1", "127.0.0.1"];
    let by_cm = ["-cm", "1", "rc_lat", "quit"];
    let client = [&program[..], &options, &tests, &by_cm].concat();
    let [_, client] = serve(&fabric, port, &program, &client);
    let results = text(&client);
    for test in [&tests[..], &["rc_lat"]].concat() {
        assert!(results.contains(&format!("{test}:\n")), "{test}: {results}");
    }
    assert!(!results.contains("failed"), "{results}");
    fabric.ended();
}

#[test]
#[cfg_attr(not(has_program = "fio"), ignore = "fio is not installed (ci/setup)")]
fn fio_transfers() {
    let fabric = Fabric::new(&[]);
    for verb in ["write", "read"] {
        let port = free_port();
        let port_option = format!("--port={port}");
        let job = [
            "fio",
            "--ioengine=rdma",
            &port_option,
            "--bs=64k",
            "--size=4m",
        ];
        let server = [&job[..], &["--name=server", "--rw=read", "--iodepth=8"]].concat();
        let server = fabric.start(&server);
        fabric.wait_for_listener(port);
        let verb = format!("--verb={verb}");
        let options = [
            "--name=client",
            "--rw=write",
            "--hostname=127.0.0.1",
            &verb,
            "--iodepth=8",
        ];
        let client = fabric.start(&[&job[..], &options].concat()).output();
        let outputs = [server.output(), client];
        assert_success(&verb, &outputs);
        let client = text(&outputs[1]);
        assert!(
            client.contains("err= 0") && client.contains("4096KiB/"),
            "{client}"
        );
    }
    fabric.ended();
}

#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn mpi_programs_compute() {
    let scratch = tempfile::tempdir().expect("a directory");
    let program = scratch.path().join("mpi");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("verbs/mpi/mpi.c");
    let mut mpicc = Command::new("mpicc");
    let status = mpicc
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status();
    assert!(status.expect("mpicc").success());
    let program = program.to_str().expect("a name");
    for (hcas, model, transport, count) in [
        ("1", "A", "rc_v,self", "2"),
        ("2", "AB", "rc_v,self", "4"),
        ("1", "B", "ud_v,self", "2"),
    ] {
        let fabric = Fabric::new(&["--hcas", hcas, "--model", model]);
        let transports = format!("UCX_TLS={transport}");
        let mpirun = [
            "mpirun",
            "--allow-run-as-root",
            "--oversubscribe",
            "-np",
            count,
        ];
        let ucx = [
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "osc",
            "ucx",
            "-x",
            &transports,
        ];
        let output = fabric
            .start(&[&mpirun[..], &ucx, &[program]].concat())
            .output();
        assert_success(transport, std::slice::from_ref(&output));
        let said = text(&output);
        assert!(said.contains(&format!("{count} processes agree")), "{said}");
        fabric.ended();
    }
}
