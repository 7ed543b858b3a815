//! What the tree of a card says of its network: names of hosts, and interfaces.

use std::fmt::Write;

use snaprig_card_driver::{errno::Errno, network::Interface};

use super::vfs::Vfs;
use crate::links::{Link, links};

/// Where the C library looks for names of hosts: nowhere else, for there is no name service.
const NAME_SERVICES: &str = "passwd: files\ngroup: files\nhosts: files\n";

impl Vfs {
    /// Puts the texts about a network there.
    pub fn put_network(&mut self, interface: &Interface) -> Result<(), Errno> {
        let links = links(Some(interface));
        let mut hosts = String::from("127.0.0.1 localhost\n");
        for (address, name) in &interface.hosts {
            let _ = writeln!(hosts, "{address} {name}");
        }
        self.write_file("/etc/hosts", hosts.as_bytes(), 0o644)?;
        self.write_file("/etc/nsswitch.conf", NAME_SERVICES.as_bytes(), 0o644)?;
        for (path, text) in [
            ("/proc/net/dev", devices(&links)),
            ("/proc/net/route", routes(&links, interface)),
        ] {
            self.write_file(path, text.as_bytes(), 0o444)?;
        }
        for link in &links {
            for (name, text) in about(link) {
                let path = format!("/sys/class/net/{}/{name}", link.name);
                self.write_file(&path, format!("{text}\n").as_bytes(), 0o444)?;
            }
        }
        Ok(())
    }
}

fn about(link: &Link) -> [(&'static str, String); 7] {
    [
        ("address", link.hardware_text()),
        ("addr_len", link.hardware.len().to_string()),
        ("flags", format!("{:#x}", link.flags)),
        ("ifindex", link.index.to_string()),
        ("mtu", link.mtu.to_string()),
        ("operstate", "up".into()),
        ("type", link.kind.to_string()),
    ]
}

/// /proc/net/dev. Nothing is counted.
fn devices(links: &[Link]) -> String {
    let mut text = String::from(
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n",
    );
    for link in links {
        let _ = writeln!(text, "{:>6}:{}", link.name, "       0".repeat(16));
    }
    text
}

/// /proc/net/route: addresses are numbers of this machine's byte order.
fn routes(links: &[Link], interface: &Interface) -> String {
    const UP: u32 = 1;
    const GATEWAY: u32 = 2;
    let mut text = String::from(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
    );
    let number = |address: std::net::Ipv4Addr| u32::from_ne_bytes(address.octets());
    for link in links.iter().filter(|link| link.name == interface.name) {
        for (to, gateway, flags, mask) in [
            (0, number(interface.gateway), UP | GATEWAY, 0),
            (number(link.network()), 0, UP, number(link.mask())),
        ] {
            let _ = writeln!(
                text,
                "{}\t{to:08X}\t{gateway:08X}\t{flags:04X}\t0\t0\t0\t{mask:08X}\t0\t0\t0",
                link.name
            );
        }
    }
    text
}
