//! What a user would move files with instead: servers of others on the host, which a card reaches over SCIF
//! (`fixtures/bench/snapify_io_relay.c`). Each has its keys, its configuration and its files in the benchmark's directory,
//! and ends with the benchmark.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{AnyError, compile::Programs};

/// Where a server is reached from a card: this port of SCIF, and those after it.
pub const SSH_PORT: u16 = 3001;
pub const NFS_PORT: u16 = 3002;
/// Directories of programs that are not for everybody.
const MORE: [&str; 2] = ["/usr/sbin", "/sbin"];

/// A server. It is ended when this is dropped.
pub struct Server(Vec<Child>);

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Where a program is.
pub fn find(name: &str) -> Result<PathBuf, AnyError> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&paths).chain(MORE.map(PathBuf::from));
    let mut paths = directories.map(|directory| directory.join(name));
    let found = paths.find(|path| path.is_file());
    found.ok_or_else(|| format!("{name} is not installed").into())
}

/// What a command prints that must succeed.
fn output(command: &mut Command) -> Result<String, AnyError> {
    let output = command.output()?;
    let name = command.get_program().display().to_string();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?.trim().into()),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A shell in namespaces of its own, where that takes root.
fn shell(programs: &Programs, rig: &Path, namespaces: &[&str]) -> Result<Command, AnyError> {
    let mut command = match namespaces {
        [] => programs.command(&find("sh")?, rig)?,
        _ => programs.command(&find("unshare")?, rig)?,
    };
    if !namespaces.is_empty() {
        // All that is in them ends with the process that made them.
        command.args(namespaces);
        command.args(["--pid", "--fork", "--kill-child", "sh"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

/// Waits until the relay of a server says that it is there.
fn ready(what: &str, child: &mut Child) -> Result<(), AnyError> {
    let mut line = String::new();
    let said = child.stdout.take().ok_or("a pipe")?;
    BufReader::new(said).read_line(&mut line)?;
    match line.trim() {
        "ready" => Ok(()),
        _ => Err(format!("{what} does not start").into()),
    }
}

/// What a card has to have for scp: arguments, and files with their places there.
pub struct Ssh {
    pub arguments: Vec<String>,
    pub files: Vec<(PathBuf, String)>,
    port: u16,
    configuration: PathBuf,
}

impl Ssh {
    /// Makes keys and configurations.
    pub fn prepare(directory: &Path, relay: &str) -> Result<Self, AnyError> {
        for program in [
            "sshd",
            "ssh-keygen",
            "/usr/bin/scp",
            "/usr/bin/ssh",
            "unshare",
        ] {
            find(program)?;
        }
        let path = |name: &str| directory.join(name);
        for key in ["host_key", "user_key"] {
            output(
                Command::new("ssh-keygen")
                    .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                    .arg(path(key)),
            )?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let configuration = path("sshd_config");
        let directory = directory.display();
        fs::write(
            &configuration,
            format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {directory}/host_key\n\
                 AuthorizedKeysFile {directory}/user_key.pub\nPidFile none\nStrictModes no\nUsePAM no\n\
                 PasswordAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
            ),
        )?;
        let user = output(Command::new("id").arg("-un"))?;
        let of_card = path("ssh_config");
        fs::write(
            &of_card,
            format!(
                "Host host\nUser {user}\nIdentityFile /etc/bench/user_key\nIdentitiesOnly yes\nBatchMode yes\n\
                 StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n\
                 ProxyCommand {relay} stdio {SSH_PORT}\n"
            ),
        )?;
        let name = |name: &str| (path(name), format!("/etc/bench/{name}"));
        let same = |path: &str| (PathBuf::from(path), path.to_owned());
        Ok(Self {
            arguments: ["-F", "/etc/bench/ssh_config"].map(String::from).into(),
            files: vec![
                name("user_key"),
                name("ssh_config"),
                same("/etc/passwd"),
                same("/usr/bin/scp"),
                same("/usr/bin/ssh"),
                same("/bin/sh"),
            ],
            port,
            configuration,
        })
    }

    /// Starts the server. It is the user's own, so that it takes no other user.
    pub fn start(&self, programs: &Programs, relay: &Path, rig: &Path) -> Result<Server, AnyError> {
        // Root's wants a directory, which is not left on this machine.
        const ROOT: &str = "mount -t tmpfs none /run; mkdir -m 755 /run/sshd; ";
        let (namespaces, before): (&[&str], _) = match is_root() {
            true => (&["--mount"], ROOT),
            false => (&[], ""),
        };
        let mut sshd = shell(programs, rig, namespaces)?;
        sshd.args(["-ec", &format!("{before}exec \"$0\" -D -e -f \"$1\"")])
            .arg(find("sshd")?)
            .arg(&self.configuration)
            // It is no program of the offload stack.
            .env_remove("LD_LIBRARY_PATH")
            .stderr(Stdio::null());
        let mut server = Server(vec![sshd.spawn()?]);
        let mut host = programs.command(relay, rig)?;
        host.args(["host", &SSH_PORT.to_string(), &self.port.to_string()]);
        host.stdin(Stdio::piped()).stdout(Stdio::piped());
        server.0.push(host.spawn()?);
        let relay = server.0.last_mut().ok_or("a relay")?;
        ready("sshd", relay)?;
        Ok(server)
    }
}

/// Starts NFS-Ganesha for a directory, with its own ports in a network namespace of its own.
pub fn nfs(
    programs: &Programs,
    directory: &Path,
    shared: &Path,
    relay: &Path,
    rig: &Path,
) -> Result<Server, AnyError> {
    const SCRIPT: &str = "mount -t tmpfs none /run; ip link set lo up; rpcbind
        \"$1\" -F -f \"$2/ganesha.conf\" -L \"$2/ganesha.log\" -p \"$2/ganesha.pid\" &
        exec \"$0\" host \"$3\" 2049 2050";
    let ganesha = find("ganesha.nfsd")?;
    for program in ["rpcbind", "ip", "unshare"] {
        find(program)?;
    }
    if !is_root() {
        return Err("nfs-ganesha serves files of a disk for root alone".into());
    }
    fs::write(
        directory.join("ganesha.conf"),
        format!(
            "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = 2049; MNT_Port = 2050; Enable_NLM = false; \
             Enable_RQUOTA = false; }}\n\
             EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /shared; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Protocols = 3; Transports = TCP; FSAL {{ Name = VFS; }} }}\n",
            path = shared.display()
        ),
    )?;
    fs::set_permissions(shared, fs::Permissions::from_mode(0o755))?;
    let mut path = env::var_os("PATH").unwrap_or_default();
    for more in MORE {
        path.push(OsStr::new(":"));
        path.push(more);
    }
    let mut command = shell(programs, rig, &["--net", "--mount"])?;
    command
        .args(["-ec", SCRIPT])
        .args([relay, &ganesha, directory])
        .arg(NFS_PORT.to_string())
        .env("PATH", path)
        .stderr(Stdio::null());
    let mut server = Server(vec![command.spawn()?]);
    let child = server.0.last_mut().ok_or("a child")?;
    ready("nfs-ganesha", child)?;
    Ok(server)
}
