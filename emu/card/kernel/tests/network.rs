//! Connections that leave a card: what programs see of them, and what their peers do.

#[allow(dead_code)]
mod images;
#[allow(dead_code)]
mod programs;

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    sync::Mutex,
    thread::{self, JoinHandle},
};

use snaprig_card_driver::{
    errno::Errno,
    network::{Interface, Network},
};
use snaprig_card_kernel::{ExitStatus, Kernel};
use snaprig_card_platform::testing::BOTH;

/// A network on the host's loopback device: what a card knows as 172.31.N.x is 127.31.N.x there. Each test has another N.
#[derive(Clone, Copy)]
struct Loopback(u8);

impl Loopback {
    fn host(self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(127, 31, self.0, 254), 0)
    }

    fn card(self, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(127, 31, self.0, 1), port)
    }

    fn interface(self) -> Interface {
        let [card, host] = [1, 254].map(|last| Ipv4Addr::new(172, 31, self.0, last));
        Interface {
            name: "mic0".into(),
            address: card,
            prefix: 24,
            gateway: host,
            hosts: vec![(host, "host".into()), (card, "mic0".into())],
        }
    }

    /// Gives a card this network; its thread ends with the card.
    fn join(self, kernel: &Kernel) -> JoinHandle<()> {
        let carrier = kernel
            .join_network(self.interface(), Box::new(self))
            .unwrap();
        thread::spawn(move || carrier.run().unwrap())
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap())
}

impl Network for Loopback {
    fn listen(&self, port: u16) -> Result<OwnedFd, Errno> {
        let listener = TcpListener::bind(self.card(port)).map_err(|e| errno(&e))?;
        listener.set_nonblocking(true).unwrap();
        Ok(listener.into())
    }

    fn connect(&self, _: u16, to: SocketAddrV4) -> Result<(OwnedFd, u16), Errno> {
        let [_, b, c, d] = to.ip().octets();
        if (b, c) != (31, self.0) {
            return Err(Errno::ENETUNREACH);
        }
        let to = SocketAddrV4::new(Ipv4Addr::new(127, b, c, d), to.port());
        // SAFETY: socket(2) takes numbers, and the descriptor is a new one.
        let socket = unsafe {
            let flags = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            <TcpStream as std::os::fd::FromRawFd>::from_raw_fd(libc::socket(
                libc::AF_INET,
                flags,
                0,
            ))
        };
        for (address, call) in [
            (
                self.card(0),
                libc::bind as unsafe extern "C" fn(_, _, _) -> _,
            ),
            (to, libc::connect),
        ] {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(address.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: both calls read an address of this length.
            let done = unsafe { call(socket.as_raw_fd(), (&raw const name).cast(), 16) };
            let error = std::io::Error::last_os_error();
            if done != 0 && errno(&error) != Errno::EINPROGRESS {
                return Err(errno(&error));
            }
        }
        let port = socket.local_addr().unwrap().port();
        Ok((socket.into(), port))
    }
}

/// What each program has in front.
const FRAME: &str = r#"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
static void say(const char *what, long value) {
  char line[99]; int n = sprintf(line, "%s %ld\n", what, value); write(1, line, n);
}
static struct sockaddr_in at(const char *ip, int port) {
  struct sockaddr_in a = {AF_INET, htons(port)}; inet_pton(AF_INET, ip, &a.sin_addr); return a;
}
static int to(int s, const char *ip, int port) {
  struct sockaddr_in a = at(ip, port); return connect(s, (void *)&a, sizeof a) ? -errno : 0;
}
static const char *named(int s, int peer) {
  static char text[64]; struct sockaddr_in a; socklen_t n = sizeof a;
  if ((peer ? getpeername : getsockname)(s, (void *)&a, &n)) return strerror(errno);
  return inet_ntop(AF_INET, &a.sin_addr, text, sizeof text);
}
static int port_of(int s) {
  struct sockaddr_in a; socklen_t n = sizeof a; getsockname(s, (void *)&a, &n); return ntohs(a.sin_port);
}
static int error_of(int s) {
  int e = -1; socklen_t n = sizeof e; getsockopt(s, SOL_SOCKET, SO_ERROR, &e, &n); return e;
}
"#;

/// Runs a program on cards of both platforms that have a network; `host` is the host on it, and gets the listener whose port
/// is the program's argument. What the program says must be this.
fn check(number: u8, source: &str, expected: &str, host: impl Fn(&TcpListener, Loopback) + Sync) {
    let network = Loopback(number);
    let dir = tempfile::tempdir().unwrap();
    let source = format!("{FRAME}{source}");
    let program = programs::compile(dir.path(), "program", &source, &["-pthread", "-static"]);
    for kind in BOTH {
        let listener = TcpListener::bind(network.host()).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let carrying = Mutex::new(None);
        let ran = thread::scope(|scope| {
            scope.spawn(|| host(&listener, network));
            programs::run_on(kind, &program, &[&port], |kernel, _| {
                *carrying.lock().unwrap() = Some(network.join(kernel));
            })
        });
        let carrying = carrying.into_inner().unwrap();
        carrying.expect("a thread").join().unwrap();
        let ended = (ran.out.as_str(), ran.status);
        assert_eq!(ended, (expected, ExitStatus::Exited(0)), "on {kind}");
    }
}

/// A connection to the host: names, both directions, more than any buffer holds, and each end of it.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn a_program_connects_to_the_host() {
    const BYTES: usize = 3 << 20;
    check(
        1,
        r#"
static char buffer[3 << 20];
int main(int c, char **v) {
  int port = atoi(v[1]), s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  say("connect", to(s, "172.31.1.254", port)); say("again", to(s, "172.31.1.254", port));
  say("own", strcmp(named(s, 0), "172.31.1.1")); say("port", port_of(s) > 0);
  say("peer", strcmp(named(s, 1), "172.31.1.254"));
  say("nodelay", setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  for (int i = 0; i < sizeof buffer; i++) buffer[i] = i * 7;
  say("sent", write(s, buffer, sizeof buffer)); say("shutdown", shutdown(s, SHUT_WR));
  memset(buffer, 0, sizeof buffer);
  struct pollfd p = {s, POLLIN}; say("poll", poll(&p, 1, -1)); say("in", p.revents & POLLIN);
  say("peeked", recv(s, buffer, 1, MSG_PEEK)); say("got", recv(s, buffer, sizeof buffer, MSG_WAITALL));
  long wrong = 0; for (int i = 0; i < sizeof buffer; i++) wrong += buffer[i] != (char)(i * 7);
  say("wrong", wrong); say("end", read(s, buffer, 1));
  return 0;
}"#,
        "connect 0\nagain -106\nown 0\nport 1\npeer 0\nnodelay 0\nsent 3145728\nshutdown 0\npoll 1\nin 1\npeeked 1\n\
         got 3145728\nwrong 0\nend 0\n",
        |listener, network| {
            let (mut stream, from) = listener.accept().unwrap();
            assert_eq!(from.ip(), IpAddr::V4(*network.card(0).ip()));
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), BYTES);
            stream.write_all(&bytes).unwrap();
        },
    );
}

/// connect(2) that does not wait, one that is refused, and one to where there is no way.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn connections_that_nobody_waits_for_and_those_that_fail() {
    check(
        2,
        r#"
int main(int c, char **v) {
  int port = atoi(v[1]), s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  say("begun", to(s, "172.31.2.254", port));
  struct pollfd p = {s, POLLOUT}; say("poll", poll(&p, 1, -1)); say("out", p.revents); say("error", error_of(s));
  say("again", to(s, "172.31.2.254", port)); say("and again", to(s, "172.31.2.254", port));
  say("written", write(s, "x", 1)); close(s);
  s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  int e = epoll_create1(0); struct epoll_event event = {EPOLLOUT};
  say("begun", to(s, "172.31.2.254", 1)); epoll_ctl(e, EPOLL_CTL_ADD, s, &event);
  say("epoll", epoll_wait(e, &event, 1, -1)); say("events", event.events);
  say("error", error_of(s)); say("once", error_of(s)); close(s);
  s = socket(AF_INET, SOCK_STREAM, 0);
  say("refused", to(s, "172.31.2.254", 1)); say("unreachable", to(s, "8.8.8.8", 53));
  say("then", to(s, "172.31.2.254", port)); say("read", read(s, v[1], 1));
  say("written", send(s, "x", 1, MSG_NOSIGNAL)); close(s);
  s = socket(AF_INET6, SOCK_STREAM, 0);
  struct sockaddr_in6 six = {AF_INET6, htons(port)}; inet_pton(AF_INET6, "::ffff:172.31.2.254", &six.sin6_addr);
  say("mapped", connect(s, (void *)&six, sizeof six)); close(s);
  return 0;
}"#,
        "begun -115\npoll 1\nout 4\nerror 0\nagain 0\nand again -106\nwritten 1\n\
         begun -115\nepoll 1\nevents 28\nerror 111\nonce 0\n\
         refused -111\nunreachable -101\nthen 0\nread 0\nwritten 1\nmapped 0\n",
        |listener, _| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.read_exact(&mut byte).unwrap();
            listener.accept().unwrap();
        },
    );
}

/// A listener on any address has those of the host, of the card's loopback device and of its own address; one whose backlog is
/// full has the others wait.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn others_connect_to_a_program() {
    const CLIENTS: usize = 20;
    check(
        3,
        r#"
int main(int c, char **v) {
  int l = socket(AF_INET, SOCK_STREAM, 0), control = socket(AF_INET, SOCK_STREAM, 0), local = 0;
  struct sockaddr_in any = at("0.0.0.0", 0), from; socklen_t n = sizeof from;
  say("bind", bind(l, (void *)&any, sizeof any)); say("listen", listen(l, 3));
  say("control", to(control, "172.31.3.254", atoi(v[1])));
  char text[16]; sprintf(text, "%05d", port_of(l)); write(control, text, 5);
  if (fork() == 0) {
    for (int i = 0; i < 2; i++) {
      int s = socket(AF_INET, SOCK_STREAM, 0); to(s, i ? "172.31.3.1" : "127.0.0.1", port_of(l));
      write(s, "c", 1); read(s, text, 1); close(s);
    }
    _exit(0);
  }
  int sum = 0;
  for (int i = 0; i < 22; i++) {
    int s = accept(l, (void *)&from, &n); char b = 0;
    sum += read(s, &b, 1); write(s, &b, 1); local += b == 'c'; sum += read(s, &b, 1); close(s);
  }
  say("local", local); say("bytes", sum); wait(0); close(l);
  int again = socket(AF_INET, SOCK_STREAM, 0); any.sin_port = htons(atoi(text)); int one = 1;
  int port = 0; read(control, &port, 4); any.sin_port = htons(port);
  say("taken", bind(again, (void *)&any, sizeof any) ? -errno : listen(again, 1) ? -errno : 0);
  return 0;
}"#,
        "bind 0\nlisten 0\ncontrol 0\nlocal 2\nbytes 22\ntaken -98\n",
        |listener, network| {
            let (mut control, _) = listener.accept().unwrap();
            let mut port = [0; 5];
            control.read_exact(&mut port).unwrap();
            let port = std::str::from_utf8(&port).unwrap().parse().unwrap();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| TcpStream::connect(network.card(port)).unwrap())
                .collect();
            for mut client in clients {
                client.write_all(b"h").unwrap();
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                assert_eq!(&byte, b"h");
            }
            // A port of the card's that somebody on the host has.
            let taken = TcpListener::bind(network.card(0)).unwrap();
            let port = u32::from(taken.local_addr().unwrap().port());
            control.write_all(&port.to_le_bytes()).unwrap();
            let _ = control.read_exact(&mut [0]);
        },
    );
}

/// A peer that goes without having read everything, and one that goes before it is written to.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn peers_that_go() {
    check(
        4,
        r#"
int main(int c, char **v) {
  char b; int s = socket(AF_INET, SOCK_STREAM, 0); signal(SIGPIPE, SIG_IGN);
  to(s, "172.31.4.254", atoi(v[1])); write(s, "unread", 6);
  struct pollfd p = {s, POLLRDHUP}; poll(&p, 1, -1); say("hup", (p.revents & POLLRDHUP) != 0);
  say("read", read(s, &b, 1)); say("errno", errno); say("then", read(s, &b, 1));
  say("write", write(s, "x", 1)); say("errno", errno); close(s);
  s = socket(AF_INET, SOCK_STREAM, 0); to(s, "172.31.4.254", atoi(v[1]));
  say("read", read(s, &b, 1)); say("end", read(s, &b, 1)); close(s);
  s = socket(AF_INET, SOCK_STREAM, 0); to(s, "172.31.4.254", atoi(v[1])); read(s, &b, 1);
  p.fd = s; p.events = POLLIN; poll(&p, 1, -1); close(s);
  return 0;
}"#,
        "hup 1\nread -1\nerrno 104\nthen 0\nwrite -1\nerrno 32\nread 1\nend 0\n",
        |listener, _| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0]).unwrap();
            drop(stream);
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"1").unwrap();
            drop(stream);
            // The card's program leaves something unread, which this side hears.
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"123").unwrap();
            let error = stream.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        },
    );
}

/// What goes on on another card has lost its peers outside, and listens there as it did.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn a_restored_program_listens_again() {
    let source = r#"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
static void say(const char *what, long value) {
  char line[99]; int n = sprintf(line, "%s %ld\n", what, value); write(1, line, n);
}
static int to(int port) {
  struct sockaddr_in a = {AF_INET, htons(port)}; inet_pton(AF_INET, "172.31.6.254", &a.sin_addr);
  int s = socket(AF_INET, SOCK_STREAM, 0); return connect(s, (void *)&a, sizeof a) ? -1 : s;
}
static void work(int port) {
  int l = socket(AF_INET, SOCK_STREAM, 0), s; char b; struct sockaddr_in own; socklen_t n = sizeof own;
  listen(l, 2); getsockname(l, (void *)&own, &n); s = to(port); write(s, &own.sin_port, 2);
  struct { int fd; unsigned flags; } image = {open("/dev/image", O_WRONLY)};
  int restored = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40086b01, &image);
  if (!restored) { kill(0, SIGKILL); }
  struct pollfd p = {s, POLLIN}; poll(&p, 1, -1); say("hup", (p.revents & POLLHUP) != 0);
  say("read", read(s, &b, 1)); say("errno", errno);
  s = to(port); say("again", s >= 0); s = accept(l, 0, 0); say("read", read(s, &b, 1)); say("byte", b);
}
int main(int c, char **v) {
  int status, pid;
  if (c > 1) {
    if ((pid = fork()) == 0) { setpgid(0, 0); work(atoi(v[1])); _exit(0); }
  } else {
    struct { int fd, stdio[3]; } from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
    pid = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from);
    if (pid < 0) { say("restore", -errno); return 9; }
  }
  waitpid(pid, &status, 0); return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}"#;
    let network = Loopback(6);
    let dir = tempfile::tempdir().unwrap();
    let program = images::compile(dir.path(), source, &["-static"]);
    for (from, to) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        let listener = TcpListener::bind(network.host()).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let kept = images::Images::default();
        let on = |kind, arguments: &[String]| {
            let mut carrying = None;
            let ran = images::run_with(kind, 128 << 20, &program, arguments, &kept, |kernel, _| {
                carrying = Some(network.join(kernel));
            });
            carrying.expect("a thread").join().unwrap();
            ran
        };
        let host = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut port = [0; 2];
            stream.read_exact(&mut port).unwrap();
            // The first card ends.
            let _ = stream.read(&mut [0]);
            let (_second, _) = listener.accept().unwrap();
            let mut stream = TcpStream::connect(network.card(u16::from_be_bytes(port))).unwrap();
            stream.write_all(b"b").unwrap();
            let _ = stream.read(&mut [0]);
        });
        let killed = ExitStatus::Exited(100 + libc::SIGKILL);
        assert_eq!(on(from, &[port]), (killed, String::new()));
        let said = "hup 1\nread -1\nerrno 104\nagain 1\nread 1\nbyte 98\n".to_owned();
        assert_eq!(on(to, &[]), (ExitStatus::Exited(0), said), "{from} to {to}");
        host.join().unwrap();
    }
}

/// Interfaces, names of hosts, and files that tell of them.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn programs_find_the_interface() {
    check(
        5,
        r#"
static void cat(const char *path) { char b[999]; int f = open(path, O_RDONLY); write(1, b, read(f, b, sizeof b)); close(f); }
int main(void) {
  int s = socket(AF_INET, SOCK_DGRAM, 0); struct ifreq all[9]; struct ifconf conf = {sizeof all, {(void *)all}};
  say("conf", ioctl(s, SIOCGIFCONF, &conf)); say("interfaces", conf.ifc_len / sizeof *all);
  struct ifreq r = all[1]; say(r.ifr_name, ioctl(s, SIOCGIFINDEX, &r)); say("index", r.ifr_ifindex);
  ioctl(s, SIOCGIFADDR, &r); say(inet_ntoa(((struct sockaddr_in *)&r.ifr_addr)->sin_addr), 0);
  ioctl(s, SIOCGIFNETMASK, &r); say(inet_ntoa(((struct sockaddr_in *)&r.ifr_addr)->sin_addr), 0);
  ioctl(s, SIOCGIFBRDADDR, &r); say(inet_ntoa(((struct sockaddr_in *)&r.ifr_addr)->sin_addr), 0);
  ioctl(s, SIOCGIFFLAGS, &r); say("up", (r.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING));
  ioctl(s, SIOCGIFMTU, &r); say("mtu", r.ifr_mtu); ioctl(s, SIOCGIFHWADDR, &r); say("kind", r.ifr_hwaddr.sa_family);
  strcpy(r.ifr_name, "eth7"); say("none", ioctl(s, SIOCGIFADDR, &r)); say("errno", errno);
  char name[IF_NAMESIZE]; say(if_indextoname(1, name), if_nametoindex("mic0"));
  struct ifaddrs *list; say("getifaddrs", getifaddrs(&list));
  for (struct ifaddrs *i = list; i; i = i->ifa_next)
    if (i->ifa_addr->sa_family == AF_INET) {
      struct sockaddr_in *a = (void *)i->ifa_addr, *m = (void *)i->ifa_netmask;
      char line[99]; sprintf(line, "%s %s/%x", i->ifa_name, inet_ntoa(a->sin_addr), m->sin_addr.s_addr); say(line, 0);
    }
  struct hostent *host = gethostbyname("host"); say(host ? inet_ntoa(*(struct in_addr *)host->h_addr) : "nobody", 0);
  cat("/sys/class/net/mic0/address"); cat("/proc/net/route"); cat("/etc/hosts");
  return 0;
}"#,
        "conf 0\ninterfaces 2\nmic0 0\nindex 2\n172.31.5.1 0\n255.255.255.0 0\n172.31.5.255 0\nup 1\nmtu 1500\nkind 1\n\
         none -1\nerrno 19\nlo 2\ngetifaddrs 0\nlo 127.0.0.1/ff 0\nmic0 172.31.5.1/ffffff 0\n172.31.5.254 0\n\
         02:4d:ac:1f:05:01\n\
         Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
         mic0\t00000000\tFE051FAC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
         mic0\t00051FAC\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
         127.0.0.1 localhost\n172.31.5.254 host\n172.31.5.1 mic0\n",
        |_, _| {},
    );
}
