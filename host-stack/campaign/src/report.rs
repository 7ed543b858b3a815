//! A failure as files: the smallest plan, what it breaks, a trace for Perfetto, a timeline for
//! people, and the line that replays it.

use std::{
    fmt::Write,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use snaprig_sim::{
    Fault, When,
    trace::{Item, Mark},
};

use crate::{
    campaign::Found,
    registry::Registry,
    scenario::{Canary, Class, Outcome, Watch},
};

/// More events than this make no picture: those are shown that came before it broke.
const EVENTS_MAX: usize = 600;
/// And as many after it.
const EVENTS_AFTER: usize = 40;
/// The file that says what a failure breaks.
const FAILURE: &str = "failure.json";
/// Pixels between two lanes, and between two events.
const LANE_PX: usize = 220;
const EVENT_PX: usize = 18;
/// Characters of an event's label.
const LABEL_CHARS: usize = 40;

/// Writes a file under its name only when all of it is on the disk.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)
}

/// What a failure's directory says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The invariant that the plan breaks.
    pub invariant: String,
    /// How.
    pub how: String,
    /// What kind of failure.
    pub class: Class,
    /// Whether it was found on a real rig.
    pub rig: bool,
    /// The name of the planted bug with which it was found.
    pub canary: Option<String>,
}

impl Failure {
    /// Of what was found.
    pub fn new(found: &Found, rig: bool, canary: Option<Canary>) -> Self {
        Self {
            invariant: found.invariant.clone(),
            how: found.how.clone(),
            class: found.class,
            rig,
            canary: canary.map(|canary| canary.name.into()),
        }
    }

    /// Writes it to a failure's directory.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        write_file(&folder.join(FAILURE), &text)
    }

    /// Reads it from there.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(folder.join(FAILURE))?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// Writes the directory of a failure in simulation.
pub fn write(
    folder: &Path,
    found: &Found,
    registry: &Registry,
    canary: Option<Canary>,
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    write_file(&folder.join("plan.json"), found.plan.to_text().as_bytes())?;
    let watch = Watch::with(canary).recording();
    let finished = registry.run(&found.plan, watch);
    let outcome = finished.map_err(io::Error::other)?.outcome;
    write_file(
        &folder.join("trace.json"),
        chrome_trace(&outcome).to_string().as_bytes(),
    )?;
    let page = timeline(found, &outcome);
    write_file(&folder.join("timeline.html"), page.as_bytes())?;
    Failure::new(found, false, canary).write(folder)?;
    write_line(folder, registry)
}

/// The line that replays a failure.
pub fn write_line(folder: &Path, registry: &Registry) -> io::Result<()> {
    let line = registry.replay_line(folder) + "\n";
    write_file(&folder.join("repro.txt"), line.as_bytes())
}

/// The run in the trace event format (Chrome, Perfetto): a process is a track, a message a flow.
fn chrome_trace(outcome: &Outcome) -> Value {
    let micros = |ns: u64| ns as f64 / 1e3;
    let mut events: Vec<_> = outcome
        .processes
        .iter()
        .enumerate()
        .map(|(pid, name)| json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}))
        .collect();
    for (id, item) in outcome.trace.record().iter().enumerate() {
        let (at, ts) = (item.at.0, micros(item.now_ns));
        let category = class(item);
        events.push(json!({
            "ph": "X", "pid": at, "tid": 0, "ts": ts, "dur": 0.5, "name": item.what, "cat": category,
        }));
        if let Some((from, sent)) = item.from {
            let sent = micros(sent);
            events.push(json!({
                "ph": "s", "pid": from.0, "tid": 0, "ts": sent, "id": id, "name": "message", "cat": "message",
            }));
            events.push(json!({
                "ph": "f", "bp": "e", "pid": at, "tid": 0, "ts": ts, "id": id, "name": "message", "cat": "message",
            }));
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"})
}

/// Text as it is written in a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A self-contained page, as all reports look; `style` is what it has beside that.
pub fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        r##"<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 1.5em; color: #1b1f24; background: #fff }}
h1 {{ font-size: 1.3em }} pre {{ background: #f4f5f7; padding: .8em; overflow-x: auto }}
{style}</style></head><body>
{body}
</body></html>
"##,
        escape(title)
    )
}

/// What a timeline looks like.
const TIMELINE: &str = "\
h1 { color: #b3261e }
svg text { font: 11px ui-monospace, monospace; fill: #3c4650 } svg .name { font-weight: bold }
.lane { stroke: #c9d1d9 } .message { stroke: #7d9bc1; stroke-width: 1 } .event { fill: #2f6f4e }
.fault, .broken { fill: #b3261e } svg text.fault, svg text.broken { fill: #b3261e; font-weight: bold }
circle.broken { scroll-margin-top: 40vh }
";

/// One self-contained page: a lane for each process, messages as arrows, faults marked, the broken
/// invariant named.
fn timeline(found: &Found, outcome: &Outcome) -> String {
    let record = outcome.trace.record();
    let broken = record.iter().position(|item| item.mark == Mark::Broken);
    let end = broken.map_or(record.len(), |at| record.len().min(at + EVENTS_AFTER));
    let skipped = end.saturating_sub(EVENTS_MAX);
    let shown = &record[skipped..end];
    let width = LANE_PX * outcome.processes.len();
    let height = EVENT_PX * (shown.len() + 2);
    let mut svg = String::new();
    for (number, name) in outcome.processes.iter().enumerate() {
        let x = LANE_PX * number + 12;
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            r#"<line x1="{x}" y1="20" x2="{x}" y2="{height}" class="lane"/><text x="{x}" y="12" class="name">{}</text>"#,
            escape(name)
        );
    }
    let y_of = |index: usize| EVENT_PX * (index + 1) + 16;
    for (index, item) in shown.iter().enumerate() {
        let y = y_of(index);
        let x = LANE_PX * usize::from(item.at.0) + 12;
        if let Some((from, sent)) = item.from {
            // The last thing that the sender had done when it sent it.
            let source = shown[..index]
                .iter()
                .rposition(|other| other.at == from && other.now_ns <= sent);
            let from_x = LANE_PX * usize::from(from.0) + 12;
            let from_y = source.map_or(y - EVENT_PX, y_of);
            let _ = write!(
                svg,
                r##"<line x1="{from_x}" y1="{from_y}" x2="{x}" y2="{y}" class="message" marker-end="url(#arrow)"/>"##
            );
        }
        event(&mut svg, item, x, y);
    }
    let out = |count: usize, which: &str| match count {
        0 => String::new(),
        count => format!("<p>{count} {which} events are left out; trace.json has them.</p>"),
    };
    let mut notice = out(skipped, "earlier") + &out(record.len() - end, "later");
    if broken.is_some() {
        notice += r##"<p><a href="#broken">Where it broke</a></p>"##;
    }
    let body = format!(
        r##"<h1>Broken: {invariant}</h1><p>{how}</p><p>seed {seed}, scenario {scenario}, {parameters}; faults that happened: {faults}{what}</p>
<details><summary>plan.json</summary><pre>{plan}</pre></details>{notice}
<svg width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg"><defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" fill="#7d9bc1"/></marker></defs>{svg}</svg>"##,
        seed = found.plan.seed,
        invariant = escape(&found.invariant),
        how = escape(&found.how),
        parameters = escape(&Value::Object(found.plan.parameters.clone()).to_string()),
        scenario = escape(&found.plan.scenario),
        faults = outcome.faults,
        what = escape(&faults(found)),
        plan = escape(&found.plan.to_text()),
    );
    let title = format!("{}: {}", found.number, found.invariant);
    page(&title, TIMELINE, &body)
}

fn event(svg: &mut String, item: &Item, x: usize, y: usize) {
    let class = class(item);
    let (label, radius, id) = match item.mark {
        Mark::Event => (shorten(&item.what, LANE_PX / 8), 3, ""),
        Mark::Fault => (shorten(&item.what, LABEL_CHARS), 5, ""),
        Mark::Broken => (format!("BROKEN: {}", item.what), 7, r#"id="broken" "#),
    };
    let (text_x, text_y) = (x + 8, y + 4);
    let _ = write!(
        svg,
        r#"<circle {id}cx="{x}" cy="{y}" r="{radius}" class="{class}"><title>{} ns: {}</title></circle><text x="{text_x}" y="{text_y}" class="{class}">{}</text>"#,
        item.now_ns,
        escape(&item.what),
        escape(&label)
    );
}

/// The plan's faults in a line.
fn faults(found: &Found) -> String {
    let one = |fault: &Fault| {
        let when = match fault.when {
            When::Nth(nth) => format!("nth {nth}"),
            When::AtNs(at) => format!("from {at} ns on"),
            When::PerMille(often) => format!("{often} in 1000"),
        };
        format!("; {}, {when}: {:?}", fault.point, fault.kind)
    };
    found.plan.faults.iter().map(one).collect()
}

fn class(item: &Item) -> &'static str {
    match item.mark {
        Mark::Event => "event",
        Mark::Fault => "fault",
        Mark::Broken => "broken",
    }
}

fn shorten(label: &str, chars: usize) -> String {
    label.chars().take(chars).collect()
}
