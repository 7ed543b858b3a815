//! Programs that others built for InfiniBand run, unmodified, on HCAs that are not there.

mod fabric;

use std::{path::Path, process::Output};

use fabric::{Fabric, assert_success, free_port, text, wait_until};

/// Runs server and client, and then sees that nothing is left.
fn run(arguments: &[&str], program: &[&str]) -> [Output; 2] {
    let fabric = Fabric::new(arguments);
    let outputs = fabric.pair(free_port(), program);
    assert_success(&program.join(" "), &outputs);
    fabric.ended();
    outputs
}

/// A program of these has failed, and says that its peer did not answer.
fn assert_given_up(outputs: &[Output]) {
    let all = outputs.iter().map(text).collect::<String>();
    assert!(
        outputs.iter().any(|output| !output.status.success()),
        "{all}"
    );
    assert!(all.contains("transport retry counter exceeded"), "{all}");
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_devinfo"),
    ignore = "ibv_devinfo is not installed (ci/setup)"
)]
fn ibv_devinfo_sees_the_hcas() {
    let fabric = Fabric::new(&["--hcas", "3", "--model", "AB"]);
    let output = fabric.start(&["ibv_devinfo", "-v"]).output();
    assert_success("ibv_devinfo -v", std::slice::from_ref(&output));
    let text = text(&output);
    assert_eq!(text.matches("hca_id:").count(), 3, "{text}");
    assert_eq!(
        text.matches("PORT_ACTIVE (4)").count(),
        1 + 2 + 2,
        "model B has two ports\n{text}"
    );
    fabric.ended();
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn every_pingpong_runs() {
    for kind in ["rc", "uc", "ud", "srq", "xsrq"] {
        let program = format!("ibv_{kind}_pingpong");
        run(&[], &[&program, "-n", "200"]);
        run(&[], &[&program, "-n", "200", "-e"]);
    }
    // Validated, over sizes around the MTU, on its own HCA each.
    for size in ["1", "4095", "4097", "300001"] {
        run(&[], &["ibv_rc_pingpong", "-c", "-n", "50", "-s", size]);
    }
}

#[test]
#[cfg_attr(
    not(has_program = "ib_write_bw"),
    ignore = "ib_write_bw is not installed (ci/setup)"
)]
fn perftest_runs() {
    // -F: it ends in failure where it cannot tell the processor's clock, as on a busy machine.
    for (test, transports) in [
        ("ib_write_bw", &["RC", "UC"][..]),
        ("ib_write_lat", &["RC", "UC"]),
        ("ib_read_bw", &["RC"]),
        ("ib_read_lat", &["RC"]),
        ("ib_send_bw", &["RC", "UC", "UD"]),
        ("ib_send_lat", &["RC", "UC", "UD"]),
        ("ib_atomic_bw", &["RC"]),
        ("ib_atomic_lat", &["RC"]),
    ] {
        for transport in transports {
            run(&[], &[test, "-F", "-c", transport, "-n", "100"]);
        }
    }
    run(&[], &["ib_write_bw", "-F", "-b", "-n", "100"]);
    run(&[], &["ib_send_bw", "-F", "-b", "-q", "4", "-n", "100"]);
    run(&[], &["ib_send_bw", "-F", "-e", "-n", "100"]);
    run(&[], &["ib_send_bw", "-F", "-a", "-n", "20"]);
    run(&[], &["ib_send_lat", "-F", "-e", "-n", "2000"]);
    for transport in ["UC", "UD"] {
        run(&[], &["ib_send_bw", "-F", "-c", transport, "-n", "200000"]);
    }
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn data_is_exact_when_packets_are_lost_doubled_and_overtaken() {
    // The last acknowledgement may be lost, and who would answer be gone: whoever ends first ended well.
    let fabric = Fabric::new(&["--loss", "5", "--duplicate", "5", "--reorder", "5"]);
    let outputs = fabric.pair(
        free_port(),
        &["ibv_rc_pingpong", "-c", "-n", "100", "-s", "20000"],
    );
    let ended_well = outputs
        .iter()
        .filter(|output| output.status.success())
        .count();
    let all = outputs.iter().map(text).collect::<String>();
    assert!(ended_well >= 1, "{all}");
    assert!(!all.contains("invalid data"), "{all}");
    fabric.ended();
}

/// A plan written by hand.
fn plan(name: &str) -> String {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/plans");
    plans.join(name).to_string_lossy().into_owned()
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn data_is_exact_under_a_plan_that_loses_and_reorders_packets() {
    let plan = plan("hca-loses-and-reorders-packets.json");
    let fabric = Fabric::new(&["--plan", &plan]);
    let port = free_port().to_string();
    let program = [
        "ibv_rc_pingpong",
        "-c",
        "-n",
        "100",
        "-s",
        "20000",
        "-p",
        &port,
    ];
    let server = fabric.start(&program);
    fabric::wait_for_listener(port.parse().expect("a port"));
    let client = fabric.start(&[&program[..], &["127.0.0.1"]].concat());
    wait_until("faults happen", || {
        let list = text(&fabric.tell(&["list"]));
        let faults = list.split("faults so far: ").nth(1);
        let count = faults.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        count.is_some_and(|count| count > 10)
    });
    let outputs = [server.output(), client.output()];
    let all = outputs.iter().map(text).collect::<String>();
    // The last acknowledgement may be lost, and who would answer be gone.
    assert!(
        outputs.iter().any(|output| output.status.success()),
        "{all}"
    );
    assert!(!all.contains("invalid data"), "{all}");
    fabric.ended();
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn a_plan_takes_a_link_down_and_connections_are_given_up() {
    let down = plan("hca-link-goes-down.json");
    // The same, and nobody notices.
    let scratch = tempfile::tempdir().expect("a directory");
    let partition = scratch.path().join("partition.json");
    let text_of_it = std::fs::read_to_string(&down).expect("it is there");
    std::fs::write(&partition, text_of_it.replace("link_down", "partition")).expect("written");
    for plan in [&down, partition.to_str().expect("a name")] {
        let fabric = Fabric::new(&["--plan", plan]);
        let outputs = fabric.pair(free_port(), &["ibv_rc_pingpong", "-n", "100"]);
        assert_given_up(&outputs);
        fabric.ended();
    }
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn a_plan_is_begun_while_programs_run_and_healed() {
    let fabric = Fabric::new(&[]);
    let port = free_port().to_string();
    let server = fabric.start(&["ibv_rc_pingpong", "-n", "10", "-p", &port]);
    fabric::wait_for_listener(port.parse().expect("a port"));
    let began = fabric.tell(&["fault", "--plan", &plan("hca-damages-packets.json")]);
    assert!(
        text(&began).contains("a plan is carried out"),
        "{}",
        text(&began)
    );
    let healed = fabric.tell(&["heal"]);
    assert!(!text(&healed).contains("a plan is"), "{}", text(&healed));
    let client = fabric.start(&["ibv_rc_pingpong", "-n", "10", "-p", &port, "127.0.0.1"]);
    assert_success("after healing", &[client.output(), server.output()]);
    fabric.ended();
}

#[test]
fn a_plan_that_cannot_be_carried_out_is_refused() {
    let fabric = Fabric::new(&["--plan", &plan("hca-process-dies-in-a-post.json")]);
    let output = fabric.start(&["true"]).output();
    assert!(!output.status.success());
    assert!(
        text(&output).contains("hca.step cannot"),
        "{}",
        text(&output)
    );
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "tshark"),
    ignore = "tshark is not installed (ci/setup)"
)]
fn what_goes_over_the_fabric_can_be_read_by_wireshark() {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("fabric.pcapng");
    let file = file.to_str().expect("a name");
    run(
        &["--capture", file],
        &["ibv_rc_pingpong", "-n", "10", "-s", "3000", "-c"],
    );
    let packets = |filter: &str| {
        let output = std::process::Command::new("tshark")
            .args(["-r", file, "-Y", filter])
            .output()
            .expect("tshark starts");
        String::from_utf8_lossy(&output.stdout).lines().count()
    };
    // 3,000 bytes are three packets of 1,024: a first, a middle, a last; ten each way.
    let sends = [0, 1, 2].map(|opcode| packets(&format!("infiniband.bth.opcode == {opcode}")));
    assert_eq!(sends, [20, 20, 20]);
    assert!(
        packets("infiniband.bth.opcode == 17") >= 20,
        "acknowledgements"
    );
    assert_eq!(packets("_ws.malformed"), 0);
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn a_link_that_goes_down_ends_connections_and_says_why() {
    let fabric = Fabric::new(&[]);
    let port = free_port().to_string();
    let program = ["ibv_rc_pingpong", "-n", "100000000", "-p", &port];
    let server = fabric.start(&program);
    fabric::wait_for_listener(port.parse().expect("a port"));
    let client = fabric.start(&[&program[..], &["127.0.0.1"]].concat());
    // Both are in it, and messages move.
    wait_until("messages move", || {
        let list = text(&fabric.tell(&["list"]));
        list.matches(" Rts ").count() == 2
    });
    let down = fabric.tell(&["down", "1"]);
    assert!(text(&down).contains("down"), "{}", text(&down));
    let outputs = [server.output(), client.output()];
    assert_given_up(&outputs);
    fabric.ended();
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/infiniband/verbs.h"),
    ignore = "/usr/include/infiniband/verbs.h is not there (ci/setup)"
)]
fn memory_of_every_kind_can_be_registered() {
    let fabric = Fabric::new(&[]);
    let scratch = tempfile::tempdir().expect("a directory");
    let program = scratch.path().join("memory");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("verbs/memory");
    fabric::compile(&sources, &program);
    let output = fabric.start(&[program.to_str().expect("a name")]).output();
    print!("{}", text(&output));
    assert_success("memory", std::slice::from_ref(&output));
    fabric.ended();
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn hcas_of_different_models_talk() {
    let fabric = Fabric::new(&["--hcas", "2", "--model", "AB"]);
    let port = free_port().to_string();
    let program = |hca, more: &[&str]| {
        let fixed = [
            "ibv_rc_pingpong",
            "-d",
            hca,
            "-p",
            &port,
            "-c",
            "-n",
            "50",
            "-m",
            "2048",
        ];
        fabric.start(&[&fixed[..], more].concat())
    };
    let server = program("snaprig_0", &[]);
    fabric::wait_for_listener(port.parse().expect("a port"));
    let client = program("snaprig_1", &["127.0.0.1"]).output();
    assert_success("between models", &[server.output(), client]);
    fabric.ended();
}
