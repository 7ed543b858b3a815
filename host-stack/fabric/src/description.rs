//! What a fabric is and does, as its control daemon sees it: for programs as a value, for people as text.

use std::{collections::BTreeMap, fmt, net::Ipv6Addr};

use serde::{Deserialize, Serialize};
pub use snaprig_hca::{State, Transport};

use crate::{Model, PathFaults};

/// Queue pairs that the text shows.
const QPS_SHOWN: usize = 32;
/// The heading of their table.
const QPS_HEADING: &str = "QP       PID      STATE  SENDS done/sent/posted  PSN unacked/next    RECEIVES taken/posted  POLLED send receive\n";

/// A fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Its HCAs, in the order of their numbers.
    pub hcas: Vec<Hca>,
    /// Paths that something is wrong with.
    pub paths: Vec<Path>,
    /// How many faults of its plan have happened, if it carries one out.
    pub plan_faults: Option<u64>,
    /// Whether its packets are written to a file.
    pub is_captured: bool,
    /// Queue pairs.
    pub queue_pairs: Vec<QueuePair>,
    /// Multicast groups.
    pub groups: Vec<Group>,
    /// Processes that use it.
    pub users: usize,
    /// The other nodes, if they have daemons of their own.
    pub nodes: Vec<OtherNode>,
}

/// A node that has a daemon of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OtherNode {
    /// Its number, from 1.
    pub number: u32,
    /// Where its daemon listens: `ADDRESS:PORT`.
    pub address: String,
    /// Whether packets reach it.
    pub is_up: bool,
}

/// An HCA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Hca {
    /// The name that programs find it by.
    pub device: String,
    /// Its model.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub model: Model,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Port {
    /// Its number, from 1.
    pub number: u32,
    /// Its LID.
    pub lid: u16,
    /// Its first GID.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub gid: Ipv6Addr,
    /// Whether its link works.
    pub state: PortState,
    /// Speed and width, as sysfs writes them.
    pub rate: String,
    /// What it counts, by the names of the files in sysfs: `ports/N/counters`.
    pub counters: BTreeMap<String, u64>,
    /// The same of `ports/N/hw_counters`.
    pub hw_counters: BTreeMap<String, u64>,
}

/// What a port's link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum PortState {
    /// It works.
    Active,
    /// It does not.
    Down,
}

/// The way from a port to a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Path {
    /// LID of the port that sends.
    pub from: u16,
    /// LID of the port that receives.
    pub to: u16,
    /// What happens to packets.
    pub faults: PathFaults,
}

/// A queue pair. Counts of requests are modulo 2^31.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueuePair {
    /// Its number.
    pub number: u32,
    /// Its HCA.
    pub device: String,
    /// Its port, from 1; 0: none yet.
    pub port: u32,
    /// RC, UC, UD, XRC_SEND, XRC_RECEIVE.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub transport: Transport,
    /// RESET, INIT, RTR, RTS, SQD, SQE, ERROR.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub state: State,
    /// The process that owns it.
    pub pid: u32,
    /// The peer's number.
    pub dest_qp: u32,
    /// Send requests that were ever posted.
    pub sends_posted: u32,
    /// Those of them that were wholly sent.
    pub sends_sent: u32,
    /// Those of them that are complete.
    pub sends_done: u32,
    /// Sequence number of the oldest packet without acknowledgement.
    pub psn_unacked: u32,
    /// Sequence number of the next packet.
    pub psn_next: u32,
    /// It waits for its peer to have a receive, or for room on the path.
    pub is_not_ready: bool,
    /// It waits for time to pass, or an answer to come.
    pub has_timer: bool,
    /// Receives that were ever posted.
    pub receives_posted: u32,
    /// Those of them that were taken.
    pub receives_taken: u32,
    /// A message waits for a receive to be posted.
    pub is_starved: bool,
    /// Where its sends complete.
    pub send_cq: Option<CompletionQueue>,
    /// Where its receives complete.
    pub receive_cq: Option<CompletionQueue>,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CompletionQueue {
    /// Entries that were ever made.
    pub produced: u32,
    /// Those of them that were polled.
    pub consumed: u32,
    /// What it is armed for.
    pub armed: Option<Armed>,
}

/// Completions of which a channel is told (ibv_req_notify_cq(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Armed {
    /// Solicited and failed ones.
    Solicited,
    /// Any.
    Any,
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Group {
    /// Its GID.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub gid: Ipv6Addr,
    /// Queue pairs in it.
    pub queue_pairs: usize,
}

impl fmt::Display for Description {
    /// Tables for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HCA        PORT  LID  LINK\n")?;
        for hca in &self.hcas {
            for port in &hca.ports {
                let link = match port.state {
                    PortState::Active => "up",
                    PortState::Down => "down",
                };
                let (device, number, lid) = (&hca.device, port.number, port.lid);
                writeln!(f, "{device:<10} {number:>4} {lid:>4}  {link}")?;
            }
        }
        for Path { from, to, faults } in &self.paths {
            writeln!(f, "lid {from} -> lid {to}: {faults}")?;
        }
        if let Some(faults) = self.plan_faults {
            writeln!(f, "a plan is carried out, faults so far: {faults}")?;
        }
        if !self.queue_pairs.is_empty() {
            f.write_str(QPS_HEADING)?;
        }
        for qp in self.queue_pairs.iter().take(QPS_SHOWN) {
            writeln!(f, "{qp}")?;
        }
        let more = self.queue_pairs.len().saturating_sub(QPS_SHOWN);
        if more > 0 {
            writeln!(f, "and {more} more")?;
        }
        for Group { gid, queue_pairs } in &self.groups {
            writeln!(f, "group {gid}: queue pairs: {queue_pairs}")?;
        }
        for node in &self.nodes {
            let state = if node.is_up { "up" } else { "down" };
            writeln!(f, "node {} at {}: {state}", node.number, node.address)?;
        }
        writeln!(f, "users: {}", self.users)
    }
}

impl fmt::Display for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |is: bool, mark: &'static str| if is { mark } else { "" };
        let polled = |cq: &Option<CompletionQueue>| {
            cq.as_ref().map_or(String::new(), |cq| {
                let armed = match cq.armed {
                    None => "",
                    Some(Armed::Solicited) => "s",
                    Some(Armed::Any) => "a",
                };
                format!("{}/{}{armed}", cq.consumed, cq.produced)
            })
        };
        write!(
            f,
            "{:#08x} {:<8} {:<6} {:>6}/{}/{}  {:#08x}/{:#08x}{}{}  {:>6}/{}{}  {} {}",
            self.number,
            self.pid,
            format!("{:?}", self.state),
            self.sends_done,
            self.sends_sent,
            self.sends_posted,
            self.psn_unacked,
            self.psn_next,
            mark(self.is_not_ready, " rnr"),
            mark(self.has_timer, " timer"),
            self.receives_taken,
            self.receives_posted,
            mark(self.is_starved, " starved"),
            polled(&self.send_cq),
            polled(&self.receive_cq),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_it_as_tables() {
        let queue_pair = QueuePair {
            number: 0x80_0002,
            device: "snaprig_0".into(),
            port: 1,
            transport: Transport::Rc,
            state: State::Rts,
            pid: 4711,
            dest_qp: 0x80_0003,
            sends_posted: 9,
            sends_sent: 8,
            sends_done: 7,
            psn_unacked: 0x10,
            psn_next: 0x11,
            is_not_ready: true,
            has_timer: true,
            receives_posted: 500,
            receives_taken: 12,
            is_starved: false,
            send_cq: None,
            receive_cq: Some(CompletionQueue {
                produced: 12,
                consumed: 11,
                armed: Some(Armed::Any),
            }),
        };
        let port = Port {
            number: 1,
            lid: 1,
            gid: Ipv6Addr::UNSPECIFIED,
            state: PortState::Down,
            rate: String::new(),
            counters: BTreeMap::new(),
            hw_counters: BTreeMap::new(),
        };
        let description = Description {
            name: "default".into(),
            hcas: vec![Hca {
                device: "snaprig_0".into(),
                model: Model::A,
                ports: vec![port],
            }],
            paths: vec![Path {
                from: 1,
                to: 1,
                faults: PathFaults {
                    loss: 15,
                    ..PathFaults::default()
                },
            }],
            plan_faults: Some(3),
            is_captured: false,
            queue_pairs: vec![queue_pair; QPS_SHOWN + 1],
            groups: vec![Group {
                gid: Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0, 1),
                queue_pairs: 2,
            }],
            users: 1,
            nodes: Vec::new(),
        };
        let row = "0x800002 4711     Rts         7/8/9  0x000010/0x000011 rnr timer      12/500   11/12a\n";
        let expected = [
            "HCA        PORT  LID  LINK\nsnaprig_0     1    1  down\n",
            "lid 1 -> lid 1: loss=1.5%,duplicate=0.0%,reorder=0.0%,corrupt=0.0%,delay=0us\n",
            "a plan is carried out, faults so far: 3\n",
            QPS_HEADING,
            &row.repeat(QPS_SHOWN),
            "and 1 more\ngroup ff12::1: queue pairs: 2\nusers: 1\n",
        ];
        assert_eq!(description.to_string(), expected.concat());
        let bytes = postcard::to_stdvec(&description).unwrap();
        assert_eq!(
            postcard::from_bytes::<Description>(&bytes).unwrap(),
            description
        );
    }
}
