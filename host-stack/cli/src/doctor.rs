//! `snaprig doctor`: what this host offers, what falls back to what, and how to get what is
//! missing. Every check tries the thing itself; none asks for a version.

mod checks;

use std::process::ExitCode;

use serde::Serialize;

/// Widths of the columns; with two spaces between them they fill 80 columns.
const WIDTHS: [usize; 4] = [12, 24, 18, 20];

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

/// Tries everything and prints what came of it. Fails if a rig cannot run here.
pub fn run(json: bool) -> ExitCode {
    let rows = checks::all();
    if json {
        println!(
            "{}",
            serde_json::to_string_pretty(&rows).expect("rows are plain text")
        );
    } else {
        print!("{}", table(&rows));
    }
    if can_run(&rows) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Nothing is missing that has no fallback, and there is a platform.
fn can_run(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.ok || row.fallback.is_some())
        && rows
            .iter()
            .any(|row| row.ok && checks::PLATFORMS.contains(&row.what))
}

/// Everything is there that offload programs need beside a rig.
fn can_run_offload(rows: &[Row]) -> bool {
    can_run(rows) && are_ok(rows, &checks::NEEDED_BY_OFFLOAD)
}

/// Everything is there that HCAs need.
fn can_run_verbs(rows: &[Row]) -> bool {
    are_ok(rows, &checks::NEEDED_BY_VERBS)
}

fn are_ok(rows: &[Row], needed: &[&str]) -> bool {
    let is_ok = |what: &&str| rows.iter().any(|row| row.ok && row.what == *what);
    needed.iter().all(is_ok)
}

/// What people read: at most 80 columns, the last two only where something is missing.
fn table(rows: &[Row]) -> String {
    let mut text = line(&["what", "state", "falls back to", "how to get it"]);
    for row in rows {
        let state = format!("{}{}", if row.ok { "ok: " } else { "NO: " }, row.state);
        let (fallback, remedy) = if row.ok {
            ("", "")
        } else {
            (row.fallback.unwrap_or("nothing: needed"), row.remedy)
        };
        text += &line(&[row.what, &state, fallback, remedy]);
    }
    for (what, can) in [
        ("A rig", can_run(rows)),
        ("Offload programs", can_run_offload(rows)),
        ("Verbs programs", can_run_verbs(rows)),
    ] {
        text += &format!("{what} {} run here.\n", if can { "can" } else { "CANNOT" });
    }
    text
}

/// One row, over as many lines as its longest cell needs.
fn line(cells: &[&str; 4]) -> String {
    let wrapped: Vec<Vec<String>> = cells
        .iter()
        .zip(WIDTHS)
        .map(|(cell, width)| wrap(cell, width))
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    (0..height)
        .map(|at| {
            let cell = |(lines, width): (&Vec<String>, usize)| {
                format!("{:width$}", lines.get(at).map_or("", String::as_str))
            };
            let parts: Vec<String> = wrapped.iter().zip(WIDTHS).map(cell).collect();
            parts.join("  ").trim_end().to_owned() + "\n"
        })
        .collect()
}

/// Words in lines of at most `width` characters; a longer word is cut.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let pieces: Vec<char> = word.chars().collect();
        for (index, piece) in pieces.chunks(width).enumerate() {
            let last = lines.last_mut().expect("there is one at least");
            let used = last.chars().count();
            let gap = usize::from(used > 0 && index == 0);
            if used + gap + piece.len() > width {
                lines.push(piece.iter().collect());
            } else {
                last.push_str(&" "[..gap]);
                last.extend(piece);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |what, ok, state: &str, fallback, remedy| Row {
            what,
            ok,
            state: state.into(),
            fallback,
            remedy,
        };
        vec![
            row(
                "kvm",
                false,
                "/dev/kvm: Permission denied",
                Some("ptrace"),
                "join group kvm",
            ),
            row(
                "ptrace",
                true,
                "a child was seized and stopped",
                Some("kvm"),
                "unused",
            ),
            row(
                "io_uring",
                true,
                "submitted one",
                Some("copy threads"),
                "unused",
            ),
            row(
                "memfd",
                false,
                "memfd_create: Function not implemented (os error 38)",
                None,
                "Linux 3.17 or later; a-word-that-does-not-fit-its-column",
            ),
        ]
    }

    #[test]
    fn table_aligns_in_eighty_columns() {
        let text = table(&rows());
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        insta::assert_snapshot!(text, @r"
        what          state                     falls back to       how to get it
        kvm           NO: /dev/kvm: Permission  ptrace              join group kvm
                      denied
        ptrace        ok: a child was seized
                      and stopped
        io_uring      ok: submitted one
        memfd         NO: memfd_create:         nothing: needed     Linux 3.17 or later;
                      Function not implemented                      a-word-that-does-not
                      (os error 38)                                 -fit-its-column
        A rig CANNOT run here.
        Offload programs CANNOT run here.
        Verbs programs CANNOT run here.
        ");
    }

    #[test]
    fn table_says_what_of_verbs_works() {
        let row = |what, why: Option<&str>, fallback, remedy| Row {
            what,
            ok: why.is_none(),
            state: why.unwrap_or("works").into(),
            fallback: Some(fallback),
            remedy,
        };
        let mut rows = vec![
            row("memfd", None, "", ""),
            row("libibverbs", None, "", ""),
            row("fabric", None, "", ""),
            row(
                "librdmacm",
                Some("no librdmacm.so.1"),
                "no rdma_cm programs",
                "apt-get install librdmacm1",
            ),
        ];
        insta::assert_snapshot!(table(&rows), @r"
        what          state                     falls back to       how to get it
        memfd         ok: works
        libibverbs    ok: works
        fabric        ok: works
        librdmacm     NO: no librdmacm.so.1     no rdma_cm          apt-get install
                                                programs            librdmacm1
        A rig CANNOT run here.
        Offload programs CANNOT run here.
        Verbs programs can run here.
        ");
        for needed in 0..3 {
            rows[needed].ok = false;
            assert!(!can_run_verbs(&rows));
            rows[needed].ok = true;
        }
    }

    #[test]
    fn a_rig_needs_a_platform_and_what_has_no_fallback() {
        let mut rows = rows();
        assert!(!can_run(&rows));
        rows[3].ok = true;
        assert!(can_run(&rows));
        rows[1].ok = false;
        assert!(!can_run(&rows));
        rows[0].ok = true;
        assert!(can_run(&rows));
    }

    #[test]
    fn every_check_has_an_answer_and_json_a_field_for_each() {
        let rows = checks::all();
        assert!(
            rows.iter()
                .all(|row| !row.state.is_empty() && !row.remedy.is_empty())
        );
        assert!(
            table(&rows).lines().all(|line| line.chars().count() <= 80),
            "{}",
            table(&rows)
        );
        let json = serde_json::to_value(&rows).unwrap();
        for field in ["what", "ok", "state", "fallback", "remedy"] {
            assert!(json[0].get(field).is_some(), "{field}");
        }
    }
}
