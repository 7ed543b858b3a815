//! Programs of rdmacm-utils, as they are, with HCAs of ours: librdmacm finds the connection manager's
//! device in our library.
//!
//! ```text
//!   snaprig verbs -- rping -s <---- a socket in the fabric's directory ----> snaprig verbs -- rping -c
//! ```

use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
/// What none of these programs needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fabrics of one test, in a directory of its own.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory }
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(SNAPRIG);
        command.args(["verbs", "--hcas", "2", "--"]);
        command.args(words.split(' '));
        command.env("SNAPRIG_FABRICS", self.directory.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, words: &str) -> Child {
        self.command(words).spawn().expect("it starts")
    }

    /// Starts who listens at a port, and waits until it does.
    fn serve(&self, words: &str, port: &str) -> Child {
        let child = self.start(words);
        let start = Instant::now();
        while !self.listens(port) {
            assert!(start.elapsed() < PATIENCE, "{words}: does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        child
    }

    /// Is there a listener's socket?
    fn listens(&self, port: &str) -> bool {
        self.socket(port).is_some()
    }

    /// The inode of a listener's socket: another listener has another one.
    fn socket(&self, port: &str) -> Option<u64> {
        let files = fs::read_dir(self.directory.path().join("default"));
        files.into_iter().flatten().flatten().find_map(|file| {
            let name = file.file_name().to_string_lossy().into_owned();
            let is_it = name.starts_with("cm-") && name.ends_with(&format!("-{port}"));
            is_it.then(|| file.metadata().ok().map(|metadata| metadata.ino()))?
        })
    }

    /// Waits until what `snaprig fabric list` prints is so.
    fn wait_until(&self, mut is: impl FnMut(&str) -> bool) {
        let start = Instant::now();
        loop {
            let mut list = Command::new(SNAPRIG);
            list.args(["fabric", "list"]);
            let list = list.env("SNAPRIG_FABRICS", self.directory.path());
            let list = text(&list.output().expect("it starts"));
            if is(&list) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{list}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn run(&self, words: &str) -> Output {
        finish(self.start(words))
    }
}

/// Waits for a program; kills one that hangs. What it prints fits into a pipe.
fn finish(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().expect("a child");
            let output = child.wait_with_output().expect("a child");
            panic!("hangs: {}", text(&output));
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("a child")
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A server and a client that both must succeed; what they print.
fn pair(server: &str, port: &str, client: &str) -> [String; 2] {
    let scene = Scene::new();
    let listening = scene.serve(server, port);
    let client = scene.run(client);
    let server = finish(listening);
    let texts = [text(&server), text(&client)];
    assert!(
        server.status.success() && client.status.success(),
        "{}, {}: {texts:#?}",
        server.status,
        client.status
    );
    texts
}

#[test]
#[cfg_attr(
    not(has_program = "rping"),
    ignore = "rping is not installed (ci/setup)"
)]
fn rping_pings() {
    // The second HCA is at the second address.
    for address in ["127.0.0.1", "127.0.0.2", "::1"] {
        let texts = pair(
            &format!("rping -s -a {address} -C 10 -v"),
            "7174",
            &format!("rping -c -a {address} -C 10 -v"),
        );
        for (text, prefix) in texts.iter().zip(["server ping data", "ping data"]) {
            let pings = text.lines().filter(|line| line.starts_with(prefix)).count();
            assert_eq!(pings, 10, "{text}");
        }
    }
}

#[test]
#[cfg_attr(
    not(has_program = "rping"),
    ignore = "rping is not installed (ci/setup)"
)]
fn rping_serves_many() {
    let scene = Scene::new();
    let mut server = scene.serve("rping -s -P -a 0.0.0.0 -S 4000", "7174");
    for _ in 0..2 {
        let clients = [(); 3].map(|()| {
            let mut client = scene.start("rping -c -a 127.0.0.1 -C 50 -S 4000");
            // rping's server has one place for requests that it has not looked at: each is connected, or through with
            // it, before the next comes.
            let own = format!(" {} ", client.id());
            scene.wait_until(|list| {
                let is_connected = |line: &str| line.contains(&own) && line.contains(" Rts ");
                list.lines().any(is_connected) || client.try_wait().expect("a child").is_some()
            });
            client
        });
        for client in clients {
            let output = finish(client);
            assert!(output.status.success(), "{}", text(&output));
        }
    }
    // It is killed, and its socket's file stays; another one takes its place. What is killed is the
    // server itself: `snaprig verbs` becomes it.
    server.kill().expect("it runs");
    server.wait().expect("a child");
    let left = scene.socket("7174");
    let refused = scene.run("rping -c -a 127.0.0.1 -C 1");
    assert!(
        text(&refused).contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "{}",
        text(&refused)
    );
    let server = scene.start("rping -s -a 0.0.0.0 -C 1");
    let start = Instant::now();
    while scene.socket("7174") == left {
        assert!(start.elapsed() < PATIENCE, "nobody listens in its place");
        thread::sleep(Duration::from_millis(5));
    }
    let client = scene.run("rping -c -a 127.0.0.1 -C 1");
    assert!(client.status.success(), "{}", text(&client));
    assert!(finish(server).status.success());
}

#[test]
#[cfg_attr(
    not(has_program = "ucmatose"),
    ignore = "ucmatose is not installed (ci/setup)"
)]
fn ucmatose_connects_and_migrates() {
    for options in ["", " -c 8 -C 20", " -m"] {
        let texts = pair(
            &format!("ucmatose{options}"),
            "7471",
            &format!("ucmatose -s 127.0.0.1{options}"),
        );
        for text in &texts {
            assert!(text.contains("return status 0"), "{options}: {text}");
        }
    }
}

#[test]
#[cfg_attr(
    not(has_program = "rdma_server"),
    ignore = "rdma_server is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "udaddy"),
    ignore = "udaddy is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "riostream"),
    ignore = "riostream is not installed (ci/setup)"
)]
fn blocking_ids_datagrams_and_streams() {
    for (server, port, client) in [
        ("rdma_server", "7471", "rdma_client -s 127.0.0.1"),
        ("udaddy", "7174", "udaddy -s 127.0.0.1"),
        (
            "riostream -S 4096 -C 100",
            "7471",
            "riostream -s 127.0.0.1 -S 4096 -C 100",
        ),
    ] {
        pair(server, port, client);
    }
}

#[test]
#[cfg_attr(
    not(has_program = "mckey"),
    ignore = "mckey is not installed (ci/setup)"
)]
fn a_group_gets_what_is_sent_to_it() {
    let scene = Scene::new();
    let group = "mckey -m 239.1.2.3 -b 127.0.0.1 -C 5";
    let receiver = scene.start(group);
    // It tells nobody that it has joined; the fabric does.
    let is_joined = |line: &str| line.starts_with("group ") && line.ends_with(" 1");
    scene.wait_until(|list| list.lines().any(is_joined));
    let sender = scene.run(&format!("{group} -s"));
    assert!(sender.status.success(), "{}", text(&sender));
    let receiver = finish(receiver);
    assert!(receiver.status.success(), "{}", text(&receiver));
}
