//! Programs that are started on nodes for somebody who is not to be their parent: where the job of a launcher is checkpointed, what
//! it starts on a node is a tree of its own, as it is on another machine.
//!
//! ```text
//!   launcher --rsh--> NAME.request --> who keeps the nodes: starts it
//!      ^                                    |
//!      '----------- NAME.status <-----------+  when the words have come to their end
//! ```
//!
//! The same way, whoever has a member of the job go on at another node asks for that (`NAME.move`), and is told once it does.
//! Which member is where is written down (`places`): a line for each node, its name and those of its members.
//!
//! Files, and nobody who is connected to anybody: so whoever waits can be checkpointed, and waits on when he is restarted.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, TryLockError},
    io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

/// What names the directory of requests in the environment of launchers.
pub const REQUESTS_ENV: &str = "SNAPRIG_NODES_REQUESTS";

/// That directory, in a job's.
pub const REQUESTS: &str = "nodes";

/// How often files are looked for.
pub const LOOK_EVERY: Duration = Duration::from_millis(10);
const REQUEST: &str = "request";
const MOVE: &str = "move";
/// Locked by whoever keeps the nodes.
const KEEPER: &str = "keeper";
/// Which members are on which node.
const PLACES: &str = "places";
const STATUS: &str = "status";
/// Which member of the job the words are.
const MEMBER: &str = "member";

/// What is wanted on a node.
#[derive(Debug)]
pub struct Request {
    /// The node's name.
    pub node: String,
    /// What.
    pub what: Wanted,
    status: PathBuf,
}

/// What is wanted.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// These words for a shell.
    Words(OsString),
    /// A member of the job, which goes on there; and how.
    Member(OsString, Vec<OsString>),
}

/// A node, and the members of the job that are on it; none: it is a spare one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peopled {
    /// Its name.
    pub node: String,
    /// Those of its members.
    pub members: Vec<String>,
}

/// Writes down who is where.
pub fn put_places(directory: &Path, places: &[Peopled]) -> io::Result<()> {
    let line = |place: &Peopled| {
        let words = [&place.node].into_iter().chain(&place.members);
        words.map(String::as_str).collect::<Vec<_>>().join(" ") + "\n"
    };
    let text: String = places.iter().map(line).collect();
    put(&directory.join(PLACES), text.as_bytes())
}

/// Who is where. An error: nobody keeps the nodes.
pub fn places(directory: &Path) -> io::Result<Vec<Peopled>> {
    is_kept(directory)?;
    let text = fs::read_to_string(directory.join(PLACES))?;
    let place = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let node = words.next().filter(|node| !node.is_empty())?;
        let members = words.collect();
        Some(Peopled { node, members })
    };
    Ok(text.lines().filter_map(place).collect())
}

/// Puts a file into its place, whole. Several processes may answer the same request: whose answer is the last one stays.
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("{}-new", std::process::id()));
    fs::write(&new, bytes)?;
    fs::rename(new, path)
}

/// Asks for a program, and waits until it has ended: its exit status.
pub fn ask(directory: &Path, node: &str, words: &OsStr) -> io::Result<i32> {
    // Whoever keeps them may be another one by and by: a job is restarted with all of its members.
    let status = asked(directory, (REQUEST, &|| Ok(())), node, words)?;
    status.trim().parse().map_err(io::Error::other)
}

/// Asks for a member of the job to go on at a node, in a way that these options of `ckpt move` say, and waits until it does:
/// what whoever goes on with it says of it; or, if it does not, an exit status. An error: nobody keeps the nodes.
pub fn ask_to_move(
    directory: &Path,
    node: &str,
    member: &str,
    options: &[OsString],
) -> io::Result<String> {
    let words = [OsStr::new(member)].into_iter();
    let words: Vec<_> = words
        .chain(options.iter().map(OsString::as_os_str))
        .collect();
    let words = words.join(OsStr::new("\n"));
    asked(directory, (MOVE, &|| is_kept(directory)), node, &words)
}

fn is_kept(directory: &Path) -> io::Result<()> {
    match File::open(directory.join(KEEPER)).map(|file| file.try_lock_shared()) {
        Ok(Err(TryLockError::WouldBlock)) => Ok(()),
        _ => Err(io::Error::other("the job's nodes are not there any more")),
    }
}

/// Keeps nodes, as long as the result is there. An error: somebody does.
pub fn keep(directory: &Path) -> io::Result<File> {
    let keeper = File::create(directory.join(KEEPER))?;
    match keeper.try_lock() {
        Ok(()) => Ok(keeper),
        Err(TryLockError::WouldBlock) => Err(io::Error::other("the job runs on nodes already")),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Forgets what was asked for before, and what came of that.
pub fn forget(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.file_name() != Some(OsStr::new(KEEPER)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Forgets how the words of these members have ended, which are restarted: they end once more. How those have that are no
/// members any more stays said, for whoever waits for one may not have looked yet.
pub fn forget_ends_of(directory: &Path, members: &[String]) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new(MEMBER)) {
            continue;
        }
        let member = fs::read_to_string(&path)?;
        let status = path.with_extension(STATUS);
        if members.contains(&member) && status.exists() {
            fs::remove_file(status)?;
        }
    }
    Ok(())
}

fn asked(
    directory: &Path,
    (kind, is_kept): (&str, &dyn Fn() -> io::Result<()>),
    node: &str,
    words: &OsStr,
) -> io::Result<String> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let time = since_1970.map_or(0, |time| time.as_nanos());
    let name = directory.join(format!("{}-{time}", std::process::id()));
    let status = name.with_extension(STATUS);
    let request = [node.as_bytes(), words.as_bytes()].join(&b'\n');
    put(&name.with_extension(kind), &request)?;
    loop {
        match fs::read_to_string(&status) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                is_kept()?;
                thread::sleep(LOOK_EVERY);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Takes requests that nobody has taken.
pub fn take(directory: &Path) -> io::Result<Vec<Request>> {
    let mut taken = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let wanted = match path.extension().and_then(OsStr::to_str) {
            Some(REQUEST) => Wanted::Words,
            Some(MOVE) => member_of,
            _ => continue,
        };
        let bytes = fs::read(&path)?;
        fs::remove_file(&path)?;
        let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
        let node = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let words = OsString::from_vec(parts.next().unwrap_or_default().to_vec());
        let status = path.with_extension(STATUS);
        taken.push(Request {
            node,
            what: wanted(words),
            status,
        });
    }
    Ok(taken)
}

fn member_of(words: OsString) -> Wanted {
    let words = words.into_vec();
    let mut lines = words.split(|byte| *byte == b'\n');
    let mut line = || lines.next().map(|line| OsString::from_vec(line.to_vec()));
    let member = line().unwrap_or_default();
    Wanted::Member(member, std::iter::from_fn(line).collect())
}

/// As a word of a shell.
pub fn quoted(word: &OsStr) -> OsString {
    let word = word.as_bytes();
    let parts: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    let word = parts.join(&br"'\''"[..]);
    OsString::from_vec([b"'", &word[..], b"'"].concat())
}

impl Request {
    /// Where whoever has asked looks for what is said to that.
    pub fn answer(&self) -> &Path {
        &self.status
    }

    /// Notes which member of the job its words are.
    pub fn is_of(&self, member: &str) -> io::Result<()> {
        put(&self.status.with_extension(MEMBER), member.as_bytes())
    }

    /// Words, and behind them those that say how they have ended, whoever runs them.
    pub fn script(&self, words: &OsStr) -> OsString {
        let status = quoted(self.status.as_os_str());
        let new = quoted(self.status.with_extension("new").as_os_str());
        let mut script = OsString::from("(");
        script.push(words);
        script.push("); echo $? > ");
        script.push(&new);
        script.push("; mv ");
        script.push(&new);
        script.push(" ");
        script.push(&status);
        script
    }

    /// Whether whoever has asked has been told something.
    pub fn is_answered(&self) -> bool {
        self.status.exists()
    }

    /// It could not be run, or was ended: nobody waits on.
    pub fn has_ended(&self, status: i32) -> io::Result<()> {
        match self.is_answered() {
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
        let Wanted::Words(words) = &request.what else {
            panic!("{request:?}");
        };
        let script = request.script(words);
        let run = Command::new("sh").arg("-c").arg(script).status().unwrap();
        assert!(run.success());
        request.has_ended(1).unwrap();
        assert_eq!(asked.join().unwrap().unwrap(), 7);
        assert!(take(directory.path()).unwrap().is_empty(), "once");
    }

    #[test]
    fn who_is_where_is_written_down() {
        let directory = tempfile::tempdir().unwrap();
        let place = |node: &str, members: &[&str]| Peopled {
            node: node.to_owned(),
            members: members.iter().map(|one| (*one).to_owned()).collect(),
        };
        let all = [place("node1", &["node1", "node1.2"]), place("node2", &[])];
        put_places(directory.path(), &all).unwrap();
        assert!(places(directory.path()).is_err(), "nobody keeps them");
        let _kept = keep(directory.path()).unwrap();
        assert_eq!(places(directory.path()).unwrap(), all);
        let options = ["--strategy".into(), "local".into()];
        let words = OsString::from("node1\n--strategy\nlocal");
        assert_eq!(
            member_of(words),
            Wanted::Member("node1".into(), options.into())
        );
        assert_eq!(
            member_of("node1".into()),
            Wanted::Member("node1".into(), vec![])
        );
    }

    /// Who goes on with a member may be killed in the middle of saying so; then whoever keeps the nodes says that it was.
    #[test]
    fn an_answer_that_another_one_has_not_finished_is_in_nobodys_way() {
        let directory = tempfile::tempdir().unwrap();
        let (answer, begun) = (directory.path().join("1-2.status"), "1-2.new");
        fs::write(directory.path().join(begun), "{").unwrap();
        put(&answer, b"137").unwrap();
        assert_eq!(fs::read(&answer).unwrap(), b"137");
        assert_eq!(fs::read(directory.path().join(begun)).unwrap(), b"{");
    }

    #[test]
    fn how_a_restarted_member_had_ended_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        for name in ["1", "2"] {
            put(
                &directory.join(name).with_extension(REQUEST),
                b"node1\ntrue",
            )
            .unwrap();
        }
        let mut requests = take(directory).unwrap();
        requests.sort_by(|a, b| a.answer().cmp(b.answer()));
        for (request, member) in requests.iter().zip(["node1", "node1.2"]) {
            request.is_of(member).unwrap();
            request.has_ended(137).unwrap();
        }
        forget_ends_of(directory, &["head".into(), "node1.2".into()]).unwrap();
        let answered: Vec<_> = requests.iter().map(Request::is_answered).collect();
        assert_eq!(answered, [true, false]);
        forget(directory).unwrap();
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
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
