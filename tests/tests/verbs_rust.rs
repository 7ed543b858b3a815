//! Fabrics as tests in Rust have them.

mod fabric;

use std::{
    error::Error,
    path::PathBuf,
    process::{Child, Output, Stdio},
};

use fabric::{assert_success, free_port, text, wait_for_listener, wait_until};
use snaprig::{Fabric, FabricError, Model, PathFaults, Place};
use snaprig_fabric::description::{Port, PortState};

const SNAPRIG: &str = fabric::SNAPRIG;

type Outcome = Result<(), Box<dyn Error>>;

/// A pingpong between two HCAs, or an HCA and itself.
fn pingpong(fabric: &Fabric, hcas: [usize; 2], count: u32) -> Result<[Child; 2], Box<dyn Error>> {
    let port = free_port().to_string();
    let start = |hca: usize, server: &[&str]| {
        let mut command = fabric.command("ibv_rc_pingpong");
        command.args(["-d", &format!("snaprig_{hca}"), "-p", &port, "-c"]);
        command.args(["-n", &count.to_string()]).args(server);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    };
    let server = start(hcas[0], &[])?;
    wait_for_listener(port.parse()?);
    Ok([server, start(hcas[1], &["127.0.0.1"])?])
}

fn outputs(pair: [Child; 2]) -> [Output; 2] {
    pair.map(|child| child.wait_with_output().expect("it is ours"))
}

/// Waits until both have sent something, which is known of them even when they have ended.
fn messages_move(fabric: &Fabric) {
    wait_until("messages move", || {
        let hcas = fabric.describe().expect("it runs").hcas;
        let sent = |port: &Port| port.counters["port_xmit_packets"];
        hcas.iter()
            .all(|hca| hca.ports.iter().any(|port| sent(port) > 0))
    });
}

/// What the README shows, with a program that is there.
#[snaprig::test(hcas = 2, model = "AB", exe = SNAPRIG)]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn a_link_that_comes_up_in_time_is_not_noticed(fabric: Fabric) -> Outcome {
    let pair = pingpong(&fabric, [0, 1], 200_000)?;
    messages_move(&fabric);
    for (hca, port) in [(0, 1), (1, 1)].repeat(5) {
        fabric.link_down(hca, port)?;
        fabric.link_up(hca, port)?;
    }
    assert_success("pingpong", &outputs(pair));
    Ok(())
}

#[snaprig::test(hcas = 2, exe = SNAPRIG)]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn faults_come_and_go_while_programs_run(fabric: Fabric) -> Outcome {
    let pair = pingpong(&fabric, [0, 1], 100_000_000)?;
    messages_move(&fabric);
    let loss = PathFaults {
        loss: 1000,
        ..PathFaults::default()
    };
    fabric.fault_path((0, 1), (1, 1), loss)?;
    let broken = fabric.describe()?.to_string();
    assert!(broken.contains("lid 1 -> lid 2: loss=100.0%"), "{broken}");
    let outputs = outputs(pair);
    let all = outputs.iter().map(text).collect::<String>();
    assert!(all.contains("transport retry counter exceeded"), "{all}");
    fabric.link_down(1, 1)?;
    let down = &fabric.describe()?.hcas[1].ports[0];
    assert_eq!(down.state, PortState::Down);
    assert_eq!(down.counters["link_downed"], 1);
    fabric.heal()?;
    let healed = fabric.describe()?;
    let ports = healed.hcas.iter().flat_map(|hca| &hca.ports);
    assert!(ports.clone().all(|port| port.state == PortState::Active));
    assert!(healed.paths.is_empty(), "{healed}");
    // Every one of the retries that the programs gave up after was for want of an acknowledgement.
    let timeouts = ports.map(|port| port.hw_counters["local_ack_timeout_err"]);
    assert!(timeouts.sum::<u64>() >= 7, "{healed:?}");
    let counters = "/sys/class/infiniband/snaprig_1/ports/1/counters";
    let file = fabric
        .command("cat")
        .arg(format!("{counters}/link_downed"))
        .output()?;
    assert_eq!(text(&file), "1\n");
    Ok(())
}

/// What is sent comes; and it is known when those who sent it have gone.
#[snaprig::test(hcas = 2, model = "AB", exe = SNAPRIG)]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn ports_count_what_they_carry(fabric: Fabric) -> Outcome {
    const MESSAGES: u64 = 1000;
    let counters = |hca: usize| {
        Ok::<_, Box<dyn Error>>(fabric.describe()?.hcas[hca].ports[0].counters.clone())
    };
    for output in outputs(pingpong(&fabric, [0, 1], MESSAGES as u32)?) {
        assert!(output.status.success(), "{}", text(&output));
    }
    let [one, other] = [counters(0)?, counters(1)?];
    for (sent, came) in [(&one, &other), (&other, &one)] {
        for (xmit, rcv) in [
            ("port_xmit_data", "port_rcv_data"),
            ("port_xmit_packets", "port_rcv_packets"),
        ] {
            assert_eq!(sent[xmit], came[rcv], "{sent:?} {came:?}");
        }
        // 4096 bytes a message, in packets of 1024; in units of four octets, with headers.
        assert_eq!(sent["port_xmit_packets"], MESSAGES * 4);
        assert_eq!(sent["port_xmit_data"], MESSAGES * (4096 + 4 * 24) / 4);
    }
    Ok(())
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn a_fabric_ends_with_its_value_and_its_users_see_it() -> Outcome {
    let fabric = Fabric::builder().exe(SNAPRIG).start()?;
    let directory = |name| {
        let variable = fabric.environment().iter().find(|(n, _)| *n == name);
        variable.map(|(_, value)| PathBuf::from(value))
    };
    let directory = directory("SNAPRIG_FABRICS").expect("a directory of its own");
    assert!(directory.is_dir());
    let pair = pingpong(&fabric, [0, 0], 100_000_000)?;
    messages_move(&fabric);
    drop(fabric);
    assert!(!directory.exists());
    for output in outputs(pair) {
        assert!(!output.status.success(), "{}", text(&output));
    }
    Ok(())
}

#[test]
fn what_there_is_not_is_refused() -> Outcome {
    let builder = || Fabric::builder().exe(SNAPRIG);
    for hcas in [0, 65] {
        let refused = builder().hcas(hcas).start();
        assert!(matches!(refused, Err(FabricError::Hcas(n)) if n == hcas));
    }
    let scratch = tempfile::tempdir()?;
    let place = Place::named_in(scratch.path(), "shared")?;
    let first = builder().at(place.clone()).start()?;
    let second = builder().at(place.clone()).start();
    assert!(matches!(second, Err(FabricError::Start(_))));
    drop(first);
    drop(builder().at(place).start()?);
    let nowhere = Fabric::builder().exe("/nonexistent/snaprig").start();
    assert!(matches!(nowhere, Err(FabricError::Start(_))));
    let fabric = builder().hcas(2).models(&[Model::B, Model::A]).start()?;
    for (hca, port) in [(0, 0), (0, 3), (1, 2), (2, 1)] {
        let refused = fabric.link_down(hca, port);
        assert!(matches!(refused, Err(FabricError::NoPort { .. })));
    }
    let lids = [(0, 1), (0, 2), (1, 1)].map(|(hca, port)| fabric.lid(hca, port).ok());
    assert_eq!(lids, [1, 2, 3].map(Some));
    Ok(())
}
