//! One branch, from outside: starts its process, hears its events, ends it in time.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use snaprig_sdk::program::NAME;

use crate::{
    process::{Event, PROCESS, Task},
    verdict::{Verdict, last_words},
};

/// How often it is looked whether the branch is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes of standard error that its last words are looked for in.
const LAST_BYTES: u64 = 64 << 10;

/// What was seen of a branch.
#[derive(Debug, Default)]
pub struct Seen {
    /// When the program ran again, what there was: HCAs and processes.
    pub going: Option<(u32, u32)>,
    /// How long it ran from then on.
    pub ran: Duration,
    /// From the start to the end.
    pub took: Duration,
    /// Exit status of the program; none: it was ended.
    pub status: Option<i32>,
    /// Faults that happened.
    pub faults: u64,
}

/// Runs a branch, with its files in `folder`; none if it is not wanted any more.
pub fn run(
    task: &Task,
    folder: &Path,
    time: Duration,
    is_wanted: &dyn Fn() -> bool,
) -> io::Result<Option<Seen>> {
    let begun = Instant::now();
    let mut keeper = Command::new(&task.exe)
        .arg0(NAME)
        .args([PROCESS, &serde_json::to_string(task)?])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(folder.join("stderr"))?)
        // Keys of the terminal are for who started all branches.
        .process_group(0)
        .spawn()?;
    let life = keeper.stdin.take();
    let events = keeper.stdout.take().map(heard);
    let (mut seen, mut went, mut is_over) = (Seen::default(), begun, false);
    if let Some(events) = events {
        loop {
            if !is_wanted() || begun.elapsed() >= time {
                is_over = true;
                break;
            }
            match events.recv_timeout(LOOK_EVERY) {
                Ok(Event::Going { hcas, processes }) => {
                    went = Instant::now();
                    seen.going = Some((hcas, processes));
                }
                Ok(Event::Ended { status, faults }) => {
                    seen.ran = went.elapsed();
                    (seen.status, seen.faults) = (Some(status), faults);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }
    // It ends whatever runs, and then itself.
    drop(life);
    let kept = keeper.wait()?;
    seen.took = begun.elapsed();
    if is_over && !is_wanted() {
        return Ok(None);
    }
    if !is_over && seen.status.is_none() {
        // It has said why on standard error.
        seen.status = Some(kept.code().filter(|code| *code != 0).unwrap_or(1));
    }
    Ok(Some(seen))
}

/// Events, as they come; other lines are nothing.
fn heard(from: impl Read + Send + 'static) -> mpsc::Receiver<Event> {
    let (say, hear) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { return };
            if let Ok(event) = serde_json::from_str(&line)
                && say.send(event).is_err()
            {
                return;
            }
        }
    });
    hear
}

/// How it ended, whatever it has printed.
pub fn verdict(seen: &Seen, folder: &Path) -> io::Result<Verdict> {
    Ok(match seen.status {
        None => Verdict::Hung,
        Some(0) => Verdict::Survived,
        Some(status) => Verdict::Failed {
            status,
            said: said_last(folder)?,
        },
    })
}

/// Its last words: launchers have theirs on standard output.
fn said_last(folder: &Path) -> io::Result<String> {
    let said = last_words(&end_of(&folder.join("stderr"))?);
    match said.is_empty() {
        true => Ok(last_words(&end_of(&folder.join("stdout"))?)),
        false => Ok(said),
    }
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Seek;
    let mut file = File::open(path)?;
    let length = fs::metadata(path)?.len();
    file.seek(io::SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
