//! `snaprig doctor`: what this host offers, what falls back to what, and how to get what is
//! missing.

use std::{fs, path::Path, process::ExitCode};

use serde::Serialize;
use snaprig_card::platform;

/// One thing that a host may offer.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    usable: bool,
    state: String,
    without_it: &'static str,
    how_to_get_it: &'static str,
}

/// Prints what was found. Fails only if no card could run.
pub fn run(json: bool) -> ExitCode {
    let findings = look();
    if json {
        let text = serde_json::to_string_pretty(&findings).expect("findings are plain data");
        println!("{text}");
    } else {
        print!("{}", render(&findings));
    }
    let any_platform = findings
        .iter()
        .any(|f| f.usable && f.what.starts_with("platform"));
    if any_platform {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn look() -> Vec<Finding> {
    let mut findings: Vec<_> = platform::probe().into_iter().map(of_platform).collect();
    findings.push(io_uring());
    findings.push(memory());
    findings.push(open_files());
    findings
}

fn of_platform(probe: platform::Probe) -> Finding {
    let (usable, state) = match probe.result {
        Ok(time) => (
            true,
            format!("works, {} us a system call", time.as_micros()),
        ),
        Err(why) => (false, why),
    };
    let (without_it, how_to_get_it) = match probe.kind {
        platform::Kind::Kvm => (
            "cards run on ptrace",
            "load kvm-intel or kvm-amd; join group kvm",
        ),
        platform::Kind::Ptrace => ("cards run on kvm", "allow ptrace of own children"),
    };
    let what = format!("platform {}", probe.kind);
    Finding {
        what,
        usable,
        state,
        without_it,
        how_to_get_it,
    }
}

fn io_uring() -> Finding {
    let engine = snaprig_dma::Engine::new(1);
    let (usable, state) = match &engine {
        Ok(engine) => (true, format!("DMA engine on {:?}", engine.backend())),
        Err(error) => (false, error.to_string()),
    };
    Finding {
        what: "io_uring".into(),
        usable,
        state,
        without_it: "DMA by pread and pwrite",
        how_to_get_it: "sysctl kernel.io_uring_disabled=0",
    }
}

fn memory() -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0);
    Finding {
        what: "memory".into(),
        usable: available > 1 << 20,
        state: format!("{} MiB available", available >> 10),
        without_it: "small cards only",
        how_to_get_it: "a card takes what its programs touch, 512 MiB at most by default",
    }
}

fn open_files() -> Finding {
    let limit = Path::new("/proc/self/limits");
    let text = fs::read_to_string(limit).unwrap_or_default();
    let count = text
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
        .unwrap_or(0);
    Finding {
        what: "open files".into(),
        usable: count >= 1024,
        state: format!("{count} allowed"),
        without_it: "few endpoints and windows",
        how_to_get_it: "ulimit -n 4096",
    }
}

fn render(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(|f| {
            let mark = if f.usable { "ok" } else { "--" };
            let mut text = format!("{mark} {:<16} {}\n", f.what, f.state);
            if !f.usable {
                text.push_str(&format!("   {:<16} without it: {}\n", "", f.without_it));
                text.push_str(&format!("   {:<16} to get it: {}\n", "", f.how_to_get_it));
            }
            text
        })
        .collect()
}
