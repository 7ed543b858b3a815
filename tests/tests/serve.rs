//! Fabrics and campaigns over HTTP, as a client that is none of ours has them: a server process, sockets, real
//! programs.

mod fabric;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

use fabric::{SNAPRIG, TIMEOUT, free_port, text, wait_for_listener, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A server, with fabrics and a socket in a directory of its own.
struct Server {
    process: Child,
    directory: tempfile::TempDir,
    /// The lines that it printed before it served.
    said: Vec<String>,
}

/// What came back.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Its JSON, if it went well.
    #[track_caller]
    fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.json()
    }

    /// A problem with this status, which says this.
    #[track_caller]
    fn is_problem(&self, status: u16, says: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.head.contains("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        for member in ["title", "detail", "hint"] {
            assert!(
                problem[member]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{self:?}"
            );
        }
        assert!(self.body.contains(says), "{says:?} is not in {self:?}");
    }
}

/// Sends bytes, and reads until the server closes.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> Answer {
    // A server that has refused what it has read of a request may close before it has all.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        // There was more of the request than it has read.
        Err(error) if error.kind() == ErrorKind::ConnectionReset && !bytes.is_empty() => {}
        read => drop(read.expect("an answer")),
    }
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Answer {
        status: status.expect("a status"),
        head: head.into(),
        body: body.into(),
    }
}

fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: snaprig\r\nConnection: close\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl Server {
    /// One at a Unix socket.
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("http");
        Self::start_in(directory, &["--unix", socket.to_str().expect("a name")])
    }

    fn start_in(directory: tempfile::TempDir, arguments: &[&str]) -> Self {
        let mut process = command(&directory, arguments).spawn().expect("it starts");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let count = if arguments == ["--listen", "127.0.0.1:0"] {
            2
        } else {
            1
        };
        let said = lines
            .take(count)
            .map(|line| line.expect("a line"))
            .collect();
        Self {
            process,
            directory,
            said,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("http")
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let stream = UnixStream::connect(self.socket()).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        exchange(stream, &request(method, path, "", body))
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.ask(method, path, &body.to_string())
    }

    /// A program in the environment that the server says.
    fn program(&self, fabric: &str, program: &[&str]) -> Command {
        let environment = self.get(&format!("/fabrics/{fabric}/environment")).ok();
        let mut command = Command::new(program[0]);
        for (name, value) in environment.as_object().expect("an object") {
            command.env(name, value.as_str().expect("text"));
        }
        command
            .args(&program[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// SIGTERM; how it ended.
    fn end(&mut self) -> ExitStatus {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM).expect("it is ours");
        self.process.wait().expect("it is ours")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its fabrics end with it, however it ends.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let fabrics = self.directory.path().join("fabrics");
        wait_until("its fabrics end", || {
            fs::read_dir(&fabrics).map_or(0, Iterator::count) == 0
        });
    }
}

fn command(directory: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(SNAPRIG);
    command
        .arg("serve")
        .args(arguments)
        .env("SNAPRIG_FABRICS", directory.path().join("fabrics"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn a_fabric_is_started_used_broken_healed_and_ended() {
    let mut server = Server::start();
    assert_eq!(server.get("/fabrics").ok(), json!([]));
    let capture = server.directory.path().join("packets.pcapng");
    let made = server.send(
        "POST",
        "/fabrics",
        &json!({"name": "one", "hcas": 2, "model": "AB"}),
    );
    assert_eq!(made.status, 201);
    assert!(made.head.contains("location: /fabrics/one"), "{made:?}");
    let hcas = made.json()["hcas"].clone();
    assert_eq!([&hcas[0]["model"], &hcas[1]["model"]], ["A", "B"]);
    assert_eq!(hcas[1]["ports"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        server.get("/fabrics").ok(),
        json!([{"name": "one", "is_held": true}])
    );
    let captured = server.send("PUT", "/fabrics/one/capture", &json!({"file": capture}));
    assert_eq!(captured.ok()["is_captured"], true);

    let port = free_port();
    let port_text = port.to_string();
    let pingpong = |device, rest: &[&str]| {
        let program = [
            "ibv_rc_pingpong",
            "-d",
            device,
            "-p",
            &port_text,
            "-n",
            "200",
            "-c",
        ];
        server
            .program("one", &[&program, rest].concat())
            .spawn()
            .expect("it starts")
    };
    let pair = || {
        let one = pingpong("snaprig_0", &[]);
        wait_for_listener(port);
        [one, pingpong("snaprig_1", &["127.0.0.1"])]
            .map(|child| child.wait_with_output().expect("ours"))
    };
    for output in pair() {
        assert!(output.status.success(), "{}", text(&output));
    }
    assert!(fs::metadata(&capture).expect("it was captured").len() > 1000);
    let ended = server.ask("DELETE", "/fabrics/one/capture", "");
    assert_eq!(ended.ok()["is_captured"], false);

    let damage = json!({"from": 1, "to": 2, "faults": {"corrupt_per_mille": 1000}});
    let damaged = server.send("PUT", "/fabrics/one/faults", &damage).ok();
    assert_eq!(damaged["paths"][0]["faults"]["corrupt_per_mille"], 1000);
    let outputs = pair();
    assert!(!outputs[0].status.success(), "{}", text(&outputs[0]));
    let counters = server.get("/fabrics/one/counters").ok();
    assert_ne!(counters[1]["counters"]["port_rcv_errors"], 0, "{counters}");
    let timeouts = counters.as_array().expect("a list").iter();
    let timeouts =
        timeouts.filter_map(|port| port["hw_counters"]["local_ack_timeout_err"].as_u64());
    assert!(timeouts.sum::<u64>() > 0, "{counters}");

    let down = server
        .send("PUT", "/fabrics/one/links/2", &json!({"up": false}))
        .ok();
    assert_eq!(down["hcas"][1]["ports"][0]["state"], "DOWN");
    let metrics = server.get("/metrics").body;
    for line in [
        "# TYPE snaprig_link_downed counter",
        "snaprig_link_downed{fabric=\"one\",device=\"snaprig_1\",port=\"1\"} 1",
        "snaprig_port_up{fabric=\"one\",device=\"snaprig_1\",port=\"1\"} 0",
        "snaprig_port_up{fabric=\"one\",device=\"snaprig_0\",port=\"1\"} 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}:\n{metrics}"
        );
    }
    let healed = server.ask("DELETE", "/fabrics/one/faults", "").ok();
    assert_eq!(
        (
            healed["paths"].clone(),
            &healed["hcas"][1]["ports"][0]["state"]
        ),
        (json!([]), &json!("ACTIVE"))
    );

    let plan = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fixtures/plans/hca-damages-packets.json"
    ));
    let planned = server.ask("PUT", "/fabrics/one/plan", &plan.expect("a plan"));
    assert_eq!(planned.ok()["plan_faults"], 0);

    let nodes = server.get("/fabrics/one/nodes").ok();
    assert_eq!(nodes[1]["name"], "node2");
    assert_eq!(nodes[1]["devices"], json!(["snaprig_1"]));
    let on_node = server.get("/fabrics/one/environment?node=2").ok();
    assert_eq!(on_node["SNAPRIG_NODE"], "2");

    assert_eq!(server.ask("DELETE", "/fabrics/one", "").status, 204);
    server.get("/fabrics/one").is_problem(404, "not running");
    server.send("POST", "/fabrics", &json!({})).ok();
    assert!(server.end().success());
    assert!(!server.socket().exists());
    let left = fs::read_dir(server.directory.path().join("fabrics")).expect("a directory");
    assert_eq!(left.count(), 0);
}

#[test]
fn a_campaign_is_started_seen_and_cancelled() {
    let server = Server::start();
    let scenarios = server.get("/scenarios").ok();
    assert!(
        scenarios
            .as_array()
            .expect("a list")
            .contains(&json!("verbs"))
    );
    let short = json!({"scenarios": ["verbs"], "seeds": 20});
    let started = server.send("POST", "/campaigns", &short);
    assert_eq!((started.status, &started.json()["id"]), (201, &json!(1)));
    let long = json!({"seeds": 10_000_000});
    assert_eq!(server.send("POST", "/campaigns", &long).status, 201);
    server
        .send("POST", "/campaigns", &long)
        .is_problem(429, "2 campaigns run");
    let mut ended = Value::Null;
    wait_until("the campaign ends", || {
        ended = server.get("/campaigns/1").ok();
        ended["state"] != "running"
    });
    assert_eq!(
        (&ended["state"], &ended["runs"]),
        (&json!("held"), &json!(20)),
        "{ended}"
    );
    assert_eq!(ended["results"]["failures"], 0);
    wait_until("plans are run", || {
        server.get("/campaigns/2").ok()["runs"] != 0
    });
    assert_eq!(server.ask("DELETE", "/campaigns/2", "").status, 204);
    server.get("/campaigns/2").is_problem(404, "no campaign 2");
    // Its threads end: there is room for two again.
    let is_taken = || server.send("POST", "/campaigns", &short).status == 201;
    wait_until("there is room", is_taken);
    wait_until("there is room", is_taken);
    assert!(
        server
            .get("/campaigns")
            .ok()
            .as_array()
            .expect("a list")
            .len()
            >= 3
    );
    server
        .send(
            "POST",
            "/campaigns",
            &json!({"scenarios": ["nonsense"], "seeds": 1}),
        )
        .is_problem(422, "nonsense");
    server
        .send("POST", "/campaigns", &json!({"seeds": 0}))
        .is_problem(422, "0 seeds");
    server
        .send("POST", "/campaigns", &json!({"seeds": 1, "jobs": 100_000}))
        .is_problem(422, "jobs");
}

#[test]
fn every_route_is_documented() {
    let server = Server::start();
    let mut document = server.get("/openapi.json").ok();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    document["info"]["version"] = "of the workspace".into();
    let mut routes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("an object") {
        for (method, operation) in methods.as_object().expect("an object") {
            let route = format!("{} {path}", method.to_uppercase());
            assert!(
                operation["summary"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{route}"
            );
            assert!(operation["responses"]["default"].is_object(), "{route}");
            // It is there: nothing of it is unknown to the router. What it lacks it says.
            let path = path
                .replace("{fabric}", "none")
                .replace("{lid}", "1")
                .replace("{id}", "99");
            let answer = server.ask(&method.to_uppercase(), &path, "");
            assert!(
                answer.status != 405 && !answer.body.contains("\"detail\":\"Not Found\""),
                "{answer:?}"
            );
            routes.insert(route);
        }
    }
    // The table at the head of the crate has the same.
    let source = include_str!("../../host-stack/serve/src/lib.rs");
    let table: BTreeSet<_> = source
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'))
        .map(|(route, _)| route.to_owned())
        .filter(|route| route.contains(' ') && route != "GET /openapi.json")
        .collect();
    assert_eq!(routes, table);
    insta::assert_json_snapshot!(document);
}

#[test]
fn hostile_requests_are_refused() {
    let server = Server::start();
    server.get("/nothing").is_problem(404, "Not Found");
    server
        .ask("PATCH", "/fabrics", "")
        .is_problem(405, "Method Not Allowed");
    server.ask("POST", "/fabrics", "{").is_problem(400, "JSON");
    server
        .ask("POST", "/fabrics", r#"{"hcas": "two"}"#)
        .is_problem(422, "hcas");
    server
        .ask("POST", "/fabrics", r#"{"hca": 2}"#)
        .is_problem(422, "hca");
    let huge = format!(r#"{{"name": "{}"}}"#, "x".repeat(2 << 20));
    server
        .ask("POST", "/fabrics", &huge)
        .is_problem(413, "limit");
    for name in ["..", "../one", "one/two", "", ".one", "a b", "\0"] {
        let named = server.send("POST", "/fabrics", &json!({ "name": name }));
        named.is_problem(400, "fabric name");
    }
    for name in ["..%2fone", "%2e%2e", "%00", "a%20b"] {
        server
            .get(&format!("/fabrics/{name}"))
            .is_problem(400, "fabric name");
    }
    for (new, says) in [
        (json!({"hcas": 0}), "0 HCAs"),
        (json!({"hcas": 65}), "65 HCAs"),
        (json!({"model": "C"}), "A or B"),
        (json!({"pkeys": "x"}), "hexadecimal"),
        (json!({"faults": {"loss_per_mille": 1001}}), "1001"),
        (json!({"capture": "relative"}), "absolute"),
        (json!({"plan": {"version": 1}}), "plan"),
    ] {
        server.send("POST", "/fabrics", &new).is_problem(422, says);
    }
    server.get("/fabrics/none").is_problem(404, "fabric none");
    server
        .send("PUT", "/fabrics/none/links/1", &json!({"up": true}))
        .is_problem(404, "fabric none");
    server.send("POST", "/fabrics", &json!({})).ok();
    server
        .send("POST", "/fabrics", &json!({}))
        .is_problem(409, "runs already");
    for path in ["links/9", "links/0"] {
        let link = server.send(
            "PUT",
            &format!("/fabrics/default/{path}"),
            &json!({"up": false}),
        );
        link.is_problem(422, "No such file");
    }
    server
        .send("PUT", "/fabrics/default/links/70000", &json!({"up": false}))
        .is_problem(400, "70000");
    server
        .send(
            "PUT",
            "/fabrics/default/capture",
            &json!({"file": "/nonexistent/x"}),
        )
        .is_problem(422, "No such");
    let plan = json!({"version": 1, "seed": 1, "cards": 1, "scenario": "swap", "faults": []});
    server
        .send("PUT", "/fabrics/default/plan", &plan)
        .is_problem(422, "swap");
    server
        .get("/fabrics/default/nodes?node_hcas=x")
        .is_problem(400, "node_hcas");
    server
        .get("/fabrics/default/environment?node=7")
        .is_problem(422, "no node 7");
    assert_eq!(
        server.get("/fabrics/default/nodes?node_hcas=0").ok(),
        json!([])
    );
    // Bytes that are no HTTP.
    let stream = UnixStream::connect(server.socket()).expect("it listens");
    assert_eq!(
        exchange(stream, b"\x16\x03\x01 nonsense\r\n\r\n").status,
        400
    );
    server.get("/fabrics/default").ok();
}

#[test]
fn a_port_is_for_those_who_know_the_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(directory, &["--listen", "127.0.0.1:0"]);
    let address = server.said[0]
        .strip_prefix("listening on http://")
        .expect("an address");
    let address: SocketAddr = address.parse().expect("an address");
    let token = server.said[1].strip_prefix("token ").expect("a token");
    let ask = |headers: &str| {
        let stream = TcpStream::connect(address).expect("it listens");
        exchange(stream, &request("GET", "/fabrics", headers, ""))
    };
    assert_eq!(
        ask(&format!("Authorization: Bearer {token}\r\n")).ok(),
        json!([])
    );
    for headers in [
        String::new(),
        "Authorization: Bearer \r\n".into(),
        format!("Authorization: Bearer {}\r\n", &token[1..]),
        format!("Authorization: Basic {token}\r\n"),
    ] {
        let refused = ask(&headers);
        refused.is_problem(401, "token");
        assert!(
            refused.head.contains("www-authenticate: Bearer"),
            "{refused:?}"
        );
    }
    // A client that hangs does not hold up the end.
    let mut hangs = TcpStream::connect(address).expect("it listens");
    hangs
        .write_all(b"POST /fabrics HTTP/1.1\r\n")
        .expect("it listens");
    assert!(server.end().success());
}

#[test]
fn where_others_would_get_in_it_does_not_listen() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    fs::write(&path, "0123456789abcdef0123").expect("a file");
    let file = path.to_str().expect("a name").to_owned();
    let refused = |arguments: &[&str], says: &str| {
        let output = command(&directory, arguments).output().expect("it starts");
        assert!(
            !output.status.success() && text(&output).contains(says),
            "{}",
            text(&output)
        );
    };
    refused(&["--listen", "0.0.0.0:0"], "others could reach it");
    refused(&[], "--unix");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
    refused(
        &["--listen", "127.0.0.1:0", "--token-file", &file],
        "chmod 600",
    );
    refused(&["--unix", &file], "in use");
    // A socket of a dead server is replaced; of one that lives it is not.
    let socket = directory.path().join("http");
    drop(UnixListener::bind(&socket).expect("a socket"));
    let socket_text = socket.to_str().expect("a name").to_owned();
    let mut server = Server::start_in(directory, &["--unix", &socket_text]);
    assert_eq!(
        fs::metadata(&socket).expect("a socket").mode() & 0o777,
        0o600
    );
    let output = command(&server.directory, &["--unix", &socket_text])
        .output()
        .expect("it starts");
    assert!(!output.status.success(), "{}", text(&output));
    server.get("/fabrics").ok();
    assert!(server.end().success());
    assert!(!socket.exists());
}
