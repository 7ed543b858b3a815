//! Programs that are started on nodes for somebody who is not to be their parent: where the job of a launcher is checkpointed, what
//! it starts on a node is a tree of its own, as it is on another machine.
//!
//! ```text
//!   launcher --rsh--> NAME.request --> who keeps the nodes: starts it
//!      ^                                    |
//!      '----------- NAME.status <-----------+  when the words have come to their end
//! ```
//!
//! Files, and nobody who is connected to anybody: so whoever waits can be checkpointed, and waits on when he is restarted.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

/// What names the directory of requests in the environment of launchers.
pub const REQUESTS_ENV: &str = "SNAPRIG_NODES_REQUESTS";

/// How often files are looked for.
pub const LOOK_EVERY: Duration = Duration::from_millis(10);
const REQUEST: &str = "request";
const STATUS: &str = "status";

/// Words for a shell on a node.
#[derive(Debug)]
pub struct Request {
    /// The node's name.
    pub node: String,
    /// The words.
    pub words: OsString,
    status: PathBuf,
}

/// Puts a file into its place, whole.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, bytes)?;
    fs::rename(new, path)
}

/// Asks for a program, and waits until it has ended: its exit status.
pub fn ask(directory: &Path, node: &str, words: &OsStr) -> io::Result<i32> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let time = since_1970.map_or(0, |time| time.as_nanos());
    let name = directory.join(format!("{}-{time}", std::process::id()));
    let status = name.with_extension(STATUS);
    let request = [node.as_bytes(), words.as_bytes()].join(&b'\n');
    put(&name.with_extension(REQUEST), &request)?;
    loop {
        match fs::read_to_string(&status) {
            Ok(text) => return text.trim().parse().map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => thread::sleep(LOOK_EVERY),
            Err(error) => return Err(error),
        }
    }
}

/// Takes requests that nobody has taken.
pub fn take(directory: &Path) -> io::Result<Vec<Request>> {
    let mut taken = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new(REQUEST)) {
            continue;
        }
        let bytes = fs::read(&path)?;
        fs::remove_file(&path)?;
        let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
        let node = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let words = OsString::from_vec(parts.next().unwrap_or_default().to_vec());
        let status = path.with_extension(STATUS);
        taken.push(Request {
            node,
            words,
            status,
        });
    }
    Ok(taken)
}

/// As a word of a shell.
pub fn quoted(word: &OsStr) -> OsString {
    let word = word.as_bytes();
    let parts: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    let word = parts.join(&br"'\''"[..]);
    OsString::from_vec([b"'", &word[..], b"'"].concat())
}

impl Request {
    /// The words, and behind them those that say how they have ended, whoever runs them.
    pub fn script(&self) -> OsString {
        let status = quoted(self.status.as_os_str());
        let new = quoted(self.status.with_extension("new").as_os_str());
        let mut script = OsString::from("(");
        script.push(&self.words);
        script.push("); echo $? > ");
        script.push(&new);
        script.push("; mv ");
        script.push(&new);
        script.push(" ");
        script.push(&status);
        script
    }

    /// It could not be run, or was ended: nobody waits on.
    pub fn has_ended(&self, status: i32) -> io::Result<()> {
        match self.status.exists() {
            true => Ok(()),
            false => put(&self.status, status.to_string().as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_asks_hears_how_it_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let asked = thread::spawn(move || ask(&path, "node2", OsStr::new("exit '7'")));
        let request = loop {
            if let Some(request) = take(directory.path()).unwrap().pop() {
                break request;
            }
            thread::yield_now();
        };
        assert_eq!(request.node, "node2");
        let script = request.script();
        let run = Command::new("sh").arg("-c").arg(script).status().unwrap();
        assert!(run.success());
        request.has_ended(1).unwrap();
        assert_eq!(asked.join().unwrap().unwrap(), 7);
        assert!(take(directory.path()).unwrap().is_empty(), "once");
    }

    #[test]
    fn a_shell_reads_any_word() {
        let word = OsStr::new("it's a\n$word");
        let mut script = OsString::from("printf %s ");
        script.push(quoted(word));
        let said = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(said.stdout, word.as_bytes());
    }
}
