//! `snaprig doctor`: what this host offers, what falls back to what, and how to get what is
//! missing. Every check tries the thing itself; none asks for a version.

mod checks;
mod purpose;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use purpose::Purpose;

/// Columns of what people read.
const COLUMNS: usize = 80;
/// Of those, what a name and a verdict take.
const MARGIN: usize = 20;

/// What this host offers, what falls back to what, and how to get what is missing
#[derive(Args)]
pub struct Options {
    /// Only what this needs; the exit status is 1 if it cannot work here
    #[arg(long = "for", value_enum, value_name = "WHAT")]
    purpose: Option<Purpose>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that snaprig uses.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    /// It is there and works.
    ok: bool,
    /// What was found, or why it cannot be used.
    state: String,
    /// What snaprig does without it. `None`: it cannot do without.
    fallback: Option<&'static str>,
    /// How to get it.
    remedy: &'static str,
}

/// What can be done here.
#[derive(Debug, Serialize)]
struct Verdict {
    #[serde(rename = "for")]
    purpose: Purpose,
    can: bool,
    /// What is missing.
    missing: Vec<&'static str>,
}

/// Tries everything, or what a purpose needs, and prints what came of it. Fails if that, or all, cannot run here.
pub fn run(options: &Options) -> ExitCode {
    let purposes: Vec<Purpose> = options
        .purpose
        .map_or(Purpose::ALL.to_vec(), |purpose| vec![purpose]);
    let rows: Vec<Row> = checks::all()
        .into_iter()
        .filter(|check| {
            options
                .purpose
                .is_none_or(|purpose| purpose.is_served_by(check.what))
        })
        .map(checks::Check::tried)
        .collect();
    let verdicts: Vec<Verdict> = purposes
        .iter()
        .map(|purpose| purpose.verdict(&rows))
        .collect();
    match (options.json, options.purpose) {
        (true, None) => print_json(&rows),
        (true, Some(_)) => {
            print_json(&serde_json::json!({ "checks": rows, "verdict": verdicts[0] }))
        }
        (false, _) => print!("{}{}", table(&rows), sentences(&verdicts)),
    }
    match verdicts.iter().all(|verdict| verdict.can) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn print_json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).expect("rows are plain text");
    println!("{text}");
}

/// What people read: a line for each thing, and what to do below each that is missing.
fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let verdict = if row.ok { "ok" } else { "NO" };
        let head = format!("{:14}{verdict:4}", row.what);
        text += &paragraph(&head, &row.state);
        if !row.ok {
            let fallback = row.fallback.unwrap_or("nothing: it is needed");
            text += &paragraph("", &format!("without it: {fallback}"));
            text += &paragraph("", &format!("to get it: {}", row.remedy));
        }
    }
    text
}

fn sentences(verdicts: &[Verdict]) -> String {
    let mut text = String::from("\n");
    for Verdict {
        purpose,
        can,
        missing,
    } in verdicts
    {
        let verb = if *can { "can" } else { "CANNOT" };
        text += &format!("{} {verb} run here", purpose.subject());
        if !can {
            text += &format!(": {}", missing.join(", "));
        }
        text += ".\n";
    }
    text
}

/// Words behind a head, in lines of at most [`COLUMNS`] characters; no word is broken, so that it can be copied.
fn paragraph(head: &str, words: &str) -> String {
    let mut lines = vec![format!("{head:MARGIN$}")];
    for word in words.split_whitespace() {
        let last = lines.last_mut().expect("there is one at least");
        let used = last.chars().count();
        if used > MARGIN && used + 1 + word.chars().count() > COLUMNS {
            lines.push(format!("{:MARGIN$}{word}", ""));
        } else {
            if used > MARGIN {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
        .iter()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(
        what: &'static str,
        why: Option<&str>,
        fallback: Option<&'static str>,
        remedy: &'static str,
    ) -> Row {
        Row {
            what,
            ok: why.is_none(),
            state: why.unwrap_or("works").into(),
            fallback,
            remedy,
        }
    }

    #[test]
    fn no_word_is_broken_and_lines_fit() {
        let rows = [
            row(
                "kvm",
                Some("/dev/kvm: Permission denied (os error 13)"),
                Some("ptrace"),
                "enable virtualisation; join group kvm",
            ),
            row("ptrace", None, Some("kvm"), "unused"),
            row(
                "memfd",
                Some("memfd_create: Function not implemented (os error 38)"),
                None,
                "Linux 3.17 or later; a container: --security-opt seccomp=unconfined --and-a-long-word-that-does-not-fit-its-line-but-is-kept",
            ),
        ];
        insta::assert_snapshot!(table(&rows), @r"
        kvm           NO    /dev/kvm: Permission denied (os error 13)
                            without it: ptrace
                            to get it: enable virtualisation; join group kvm
        ptrace        ok    works
        memfd         NO    memfd_create: Function not implemented (os error 38)
                            without it: nothing: it is needed
                            to get it: Linux 3.17 or later; a container: --security-opt
                            seccomp=unconfined
                            --and-a-long-word-that-does-not-fit-its-line-but-is-kept
        ");
    }

    #[test]
    fn a_verdict_names_what_is_missing() {
        let works = |names: &[&'static str]| -> Vec<Row> {
            names.iter().map(|name| row(name, None, None, "")).collect()
        };
        let can = |purpose: Purpose, names: &[&'static str]| purpose.verdict(&works(names));
        assert!(can(Purpose::Verbs, &["memfd", "libibverbs", "fabric"]).can);
        assert_eq!(
            can(Purpose::Verbs, &["memfd", "libibverbs"]).missing,
            ["fabric"]
        );
        // Either platform will do.
        for platform in ["kvm", "ptrace"] {
            assert!(can(Purpose::Cards, &["memfd", platform]).can);
        }
        assert_eq!(can(Purpose::Cards, &["memfd"]).missing, ["kvm or ptrace"]);
        assert!(can(Purpose::Sim, &[]).can);
    }

    #[test]
    fn what_each_purpose_needs_is_checked() {
        let checks: Vec<_> = checks::all().into_iter().map(|check| check.what).collect();
        for purpose in Purpose::ALL {
            for needed in purpose.needs().iter().copied().flatten() {
                assert!(checks.contains(needed), "{needed}");
            }
        }
    }

    #[test]
    fn every_check_has_an_answer_and_json_a_field_for_each() {
        let rows: Vec<_> = checks::all()
            .into_iter()
            .map(checks::Check::tried)
            .collect();
        assert!(
            rows.iter()
                .all(|row| !row.state.is_empty() && !row.remedy.is_empty())
        );
        let json = serde_json::to_value(&rows).unwrap();
        for field in ["what", "ok", "state", "fallback", "remedy"] {
            assert!(json[0].get(field).is_some(), "{field}");
        }
    }
}
