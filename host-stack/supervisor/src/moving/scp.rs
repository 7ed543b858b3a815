//! scp(1) from a source to its heir: an sshd(8) of the heir's own, with keys that are good for one move.

use std::{
    fs, io,
    net::{IpAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_resources::error::{Error, Result};

use super::network;

/// How long an sshd may take to listen.
const STARTS: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Root's sshd wants an empty directory of that name, which is not left on this machine.
const SSHD: &str = "mount -t tmpfs none /run; mkdir -m 755 /run/sshd; exec \"$0\" -D -e -f \"$1\"";

/// Where a file is to be copied, and with which key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scp {
    host: IpAddr,
    port: u16,
    key: PathBuf,
    to: PathBuf,
}

fn failed(source: impl Into<io::Error>) -> Error {
    Error::io(
        "scp between two nodes (is openssh-server installed?)",
        source.into(),
    )
}

impl Scp {
    /// Copies a file.
    pub fn copy(&self, from: &Path) -> Result<()> {
        let host = match self.host {
            IpAddr::V4(host) => host.to_string(),
            IpAddr::V6(host) => format!("[{host}]"),
        };
        let mut scp = Command::new("scp");
        scp.args(["-q", "-B", "-F", "none", "-P", &self.port.to_string(), "-i"]);
        scp.arg(&self.key);
        for option in [
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        ] {
            scp.args(["-o", option]);
        }
        scp.arg(from).arg(format!("{host}:{}", self.to.display()));
        let scp = network::of_node(of_system(&mut scp));
        let copied = scp.stdin(Stdio::null()).output();
        let copied = copied.map_err(failed)?;
        match copied.status.success() {
            true => Ok(()),
            false => {
                let why = String::from_utf8_lossy(&copied.stderr).trim().to_owned();
                Err(failed(io::Error::other(why)))
            }
        }
    }
}

/// It is no program that uses HCAs: what is preloaded for those is not for it.
fn of_system(command: &mut Command) -> &mut Command {
    command
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH")
}

/// An sshd, which ends with this.
pub struct Sshd {
    child: Child,
    keys: tempfile::TempDir,
    host: IpAddr,
    port: u16,
}

impl Sshd {
    /// One that listens at this address, at a port that is free.
    pub fn start(host: IpAddr) -> Result<Self> {
        let keys = tempfile::tempdir().map_err(failed)?;
        let path = |name: &str| keys.path().join(name);
        for key in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(path(key));
            let made = of_system(&mut keygen).stdin(Stdio::null()).status();
            if !made.map_err(failed)?.success() {
                return Err(failed(io::Error::other("ssh-keygen makes no key")));
            }
        }
        let port = TcpListener::bind((host, 0)).and_then(|free| free.local_addr());
        let port = port.map_err(failed)?.port();
        let configuration = path("sshd_config");
        let directory = keys.path().display();
        let text = format!(
            "Port {port}\nListenAddress {host}\nHostKey {directory}/host_key\n\
             AuthorizedKeysFile {directory}/user_key.pub\nPidFile none\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
        );
        fs::write(&configuration, text).map_err(failed)?;
        let is_root = rustix::process::geteuid().is_root();
        let mut sshd = match is_root {
            true => {
                let mut shell = Command::new("unshare");
                shell.args(["--mount", "sh", "-ec", SSHD, "/usr/sbin/sshd"]);
                shell
            }
            false => {
                let mut sshd = Command::new("/usr/sbin/sshd");
                sshd.args(["-D", "-e", "-f"]);
                sshd
            }
        };
        sshd.arg(&configuration);
        sshd.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Sessions are children of its own, and end with it.
        sshd.process_group(0);
        let child = of_system(&mut sshd).spawn().map_err(failed)?;
        let mut started = Self {
            child,
            keys,
            host,
            port,
        };
        started.wait()?;
        Ok(started)
    }

    fn wait(&mut self) -> Result<()> {
        let until = Instant::now() + STARTS;
        while TcpStream::connect((self.host, self.port)).is_err() {
            let ended = self.child.try_wait().map_err(failed)?;
            if ended.is_some() || Instant::now() > until {
                return Err(failed(io::Error::other("sshd does not start")));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// How a file comes here.
    pub fn to(&self, path: PathBuf) -> Scp {
        Scp {
            host: self.host,
            port: self.port,
            key: self.keys.path().join("user_key"),
            to: path,
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}
