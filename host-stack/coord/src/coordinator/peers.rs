//! Who is there: peers from their first word to their last, and the members of the job, here or
//! missing.
//!
//! ```text
//!   peer     Connected --Hello--> Challenged --Join--> Joined --Leave, end, silence, nonsense--> gone
//!
//!   member   here --Leave--> (none)
//!            here --its connection ends--> missing --does not come again--> dead: (none)
//!            here --silence--> missing: it may be alive, so there is no checkpoint without it until
//!                              it comes again, or somebody says that it never will (Forget)
//! ```

use snaprig_peers::token::is_same;

use super::{
    Answer, CALLS_MAX, CallError, CallId, ConnectionId, GRACE_NS, JOIN_NS, Machine, Ns, Output,
    PEERS_MAX, Refusal, SILENCE_NS, STRANGERS_MAX, ToCoordinator, ToMember,
};
use crate::{
    auth::{proof_of_coordinator, proof_of_peer},
    message::{Nonce, Proof, Role, VERSION, cut, is_name},
};

/// Why a member is none any more that has said so.
pub(super) const LEFT: &str = "it has left";

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    stage: Stage,
    /// When something was last heard; until it has joined, when it came.
    heard_ns: Ns,
    /// The last number of a call.
    last_id: u64,
    /// Calls that wait.
    pub(super) calls: usize,
}

#[derive(Debug)]
enum Stage {
    Connected { nonce: Nonce },
    Challenged { own: Nonce, peer: Nonce },
    Control,
    Member(String),
}

impl Peer {
    fn is_stranger(&self) -> bool {
        matches!(
            self.stage,
            Stage::Connected { .. } | Stage::Challenged { .. }
        )
    }

    /// When it counts as gone.
    pub(super) fn deadline(&self) -> Ns {
        let patience = if self.is_stranger() {
            JOIN_NS
        } else {
            SILENCE_NS
        };
        self.heard_ns.saturating_add(patience)
    }
}

/// A member of the job.
#[derive(Debug)]
pub(super) enum Entry {
    Here {
        connection: ConnectionId,
        incarnation: u64,
    },
    Missing {
        why: String,
        /// When it counts as dead, if it does.
        strike_ns: Option<Ns>,
    },
}

impl Entry {
    /// One that the coordinator is told of when it starts.
    pub(super) fn expected() -> Self {
        Self::Missing {
            why: "it has not come since the coordinator was started".into(),
            strike_ns: None,
        }
    }

    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Here { connection, .. } => Some(*connection),
            Self::Missing { .. } => None,
        }
    }

    pub(super) fn missing(&self) -> Option<&str> {
        match self {
            Self::Here { .. } => None,
            Self::Missing { why, .. } => Some(why),
        }
    }

    pub(super) fn strike_ns(&self) -> Option<Ns> {
        match self {
            Self::Missing { strike_ns, .. } => *strike_ns,
            Self::Here { .. } => None,
        }
    }
}

impl Machine {
    pub(super) fn connected(&mut self, connection: ConnectionId, nonce: Nonce) {
        let strangers = self.peers.values().filter(|peer| peer.is_stranger());
        let full = match () {
            () if self.peers.len() >= PEERS_MAX => Some(("peers", PEERS_MAX)),
            () if strangers.count() >= STRANGERS_MAX => Some(("strangers", STRANGERS_MAX)),
            () => None,
        };
        let peer = Peer {
            stage: Stage::Connected { nonce },
            heard_ns: self.now,
            last_id: 0,
            calls: 0,
        };
        self.peers.insert(connection, peer);
        if let Some((of, most)) = full {
            let (of, most) = (of.to_owned(), most as u64);
            self.disconnect(connection, Refusal::Full { of, most });
        }
    }

    pub(super) fn heard(&mut self, connection: ConnectionId, message: ToCoordinator) {
        // Of one that was disconnected, something may still come.
        let Some(peer) = self.peers.get_mut(&connection) else {
            return;
        };
        if !peer.is_stranger() {
            peer.heard_ns = self.now;
        }
        let refusal = match (&peer.stage, message) {
            (Stage::Connected { nonce: own }, ToCoordinator::Hello { version, nonce }) => {
                let own = *own;
                self.challenge(connection, own, version, nonce)
            }
            (Stage::Challenged { own, peer }, ToCoordinator::Join { job, role, proof }) => {
                let (own, peer) = (*own, *peer);
                self.join(connection, (own, peer), &job, role, &proof)
            }
            (Stage::Control, ToCoordinator::Ping) | (Stage::Member(_), ToCoordinator::Ping) => {
                self.send(connection, ToMember::Pong);
                Ok(())
            }
            (Stage::Control, ToCoordinator::Call { id, call }) => {
                let call = |at: &mut Self| at.call(CallId { connection, id }, None, call);
                self.numbered(connection, id, call)
            }
            (Stage::Member(name), ToCoordinator::Call { id, call }) => {
                let name = name.clone();
                let call = |at: &mut Self| at.call(CallId { connection, id }, Some(&name), call);
                self.numbered(connection, id, call)
            }
            (
                Stage::Member(name),
                ToCoordinator::Done {
                    round,
                    phase,
                    result,
                },
            ) => {
                let name = name.clone();
                self.done(&name, round, phase, result)
            }
            (Stage::Member(name), ToCoordinator::GetsOn { round, phase }) => {
                let name = name.clone();
                self.gets_on(&name, round, phase);
                Ok(())
            }
            (Stage::Member(name), ToCoordinator::Leave) => {
                let name = name.clone();
                self.peers.remove(&connection);
                self.leave(&name, connection);
                Ok(())
            }
            (_, message) => Err(nonsense(&message)),
        };
        if let Err(why) = refusal {
            self.disconnect(connection, why);
        }
    }

    /// A call whose number is a new one, of a peer that has not too many.
    fn numbered(
        &mut self,
        connection: ConnectionId,
        id: u64,
        call: impl FnOnce(&mut Self),
    ) -> Result<(), Refusal> {
        if let Some(peer) = self.peers.get_mut(&connection) {
            if id <= peer.last_id {
                let what = format!("call {id} after call {}", peer.last_id);
                return Err(Refusal::Nonsense { what });
            }
            if peer.calls >= CALLS_MAX {
                let of = "calls that wait".into();
                let most = CALLS_MAX as u64;
                return Err(Refusal::Full { of, most });
            }
            peer.last_id = id;
            peer.calls += 1;
        }
        call(self);
        Ok(())
    }

    fn challenge(
        &mut self,
        connection: ConnectionId,
        own: Nonce,
        version: u16,
        peer: Nonce,
    ) -> Result<(), Refusal> {
        if version != VERSION {
            return Err(Refusal::Version { ours: VERSION });
        }
        if let Some(known) = self.peers.get_mut(&connection) {
            known.stage = Stage::Challenged { own, peer };
        }
        let challenge = ToMember::Challenge {
            version: VERSION,
            nonce: own,
            proof: proof_of_coordinator(&self.config.token, &peer, &own),
        };
        self.send(connection, challenge);
        Ok(())
    }

    fn join(
        &mut self,
        connection: ConnectionId,
        (own, peer): (Nonce, Nonce),
        job: &str,
        role: Role,
        proof: &Proof,
    ) -> Result<(), Refusal> {
        let expected = proof_of_peer(&self.config.token, &peer, &own, job, &role);
        if !is_same(&expected, proof) {
            return Err(Refusal::Token);
        }
        if job != self.config.job {
            let ours = self.config.job.clone();
            return Err(Refusal::Job { ours });
        }
        let stage = match role {
            Role::Control => Stage::Control,
            Role::Member {
                name,
                incarnation,
                is_heir,
            } => {
                self.enlist(connection, &name, incarnation)?;
                if is_heir {
                    self.heirs.insert(name.clone());
                }
                self.tell_members();
                self.unkept.come(connection);
                Stage::Member(name)
            }
        };
        if let Some(peer) = self.peers.get_mut(&connection) {
            peer.stage = stage;
            peer.heard_ns = self.now;
        }
        self.send(connection, ToMember::Welcome);
        Ok(())
    }

    fn enlist(
        &mut self,
        connection: ConnectionId,
        name: &str,
        incarnation: u64,
    ) -> Result<(), Refusal> {
        if !is_name(name) {
            let what = format!("a member named {name:?}");
            return Err(Refusal::Nonsense { what });
        }
        match self.members.get(name) {
            Some(Entry::Here {
                connection: old,
                incarnation: known,
            }) => {
                let old = *old;
                if *known != incarnation {
                    let name = name.to_owned();
                    return Err(Refusal::Taken { name });
                }
                // It has noticed that its connection is dead before we have.
                let what = "it has connected again".into();
                self.disconnect(old, Refusal::Silent { what });
            }
            Some(Entry::Missing { .. }) | None => {}
        }
        let here = Entry::Here {
            connection,
            incarnation,
        };
        self.heirs.remove(name);
        self.members.insert(name.into(), here);
        Ok(())
    }

    /// Who takes over must know.
    fn tell_members(&mut self) {
        let members: Vec<_> = self.full_members().cloned().collect();
        if members != self.told {
            self.told.clone_from(&members);
            self.unkept.tell();
            self.out.push(Output::Members(members));
        }
    }

    /// Members that are no heirs.
    pub(super) fn full_members(&self) -> impl Iterator<Item = &String> {
        let all = self.members.keys();
        all.filter(|name| !self.heirs.contains(*name))
    }

    /// An heir has the member's name, and the member that of its heir. Of an heir that is gone already, it is waited for a
    /// while that it comes again, by its new name.
    pub(super) fn exchange_names(&mut self, member: &str, heir: &str) {
        let is_gone = Entry::Missing {
            why: "its connection has ended".into(),
            strike_ns: Some(self.now.saturating_add(GRACE_NS)),
        };
        let new = self.members.remove(heir).unwrap_or(is_gone);
        let old = self.members.remove(member);
        self.heirs.insert(heir.into());
        let named = [(heir, old), (member, Some(new))];
        for (name, entry) in named {
            let Some(entry) = entry else { continue };
            let peer = entry.connection().and_then(|at| self.peers.get_mut(&at));
            if let Some(peer) = peer {
                peer.stage = Stage::Member(name.into());
            }
            self.members.insert(name.into(), entry);
        }
    }

    fn leave(&mut self, name: &str, connection: ConnectionId) {
        self.members.remove(name);
        self.heirs.remove(name);
        self.tell_members();
        self.lost(name, connection);
        self.seat_left(name);
        let why = LEFT.into();
        self.out.push(Output::Disconnect { connection, why });
    }

    pub(super) fn gone(&mut self, connection: ConnectionId) {
        let strike_ns = Some(self.now.saturating_add(GRACE_NS));
        self.forget_peer(connection, "its connection has ended", strike_ns);
    }

    /// A peer is turned away.
    pub(super) fn disconnect(&mut self, connection: ConnectionId, why: Refusal) {
        let text = cut(why.to_string());
        self.forget_peer(connection, &text, None);
        self.send(connection, ToMember::Refused(why));
        self.out.push(Output::Disconnect {
            connection,
            why: text,
        });
    }

    fn forget_peer(&mut self, connection: ConnectionId, why: &str, strike_ns: Option<Ns>) {
        let Some(peer) = self.peers.remove(&connection) else {
            return;
        };
        if let Stage::Member(name) = peer.stage {
            let missing = Entry::Missing {
                why: why.to_owned(),
                strike_ns,
            };
            // Nobody waits for an heir.
            match self.heirs.remove(&name) {
                true => drop(self.members.remove(&name)),
                false => drop(self.members.insert(name.clone(), missing)),
            }
            self.lost(&name, connection);
            self.seat_lost(&name, why);
        }
        self.abandon_order(connection);
    }

    /// A member's connection is no more: nor is what it waits for, and has published.
    fn lost(&mut self, name: &str, connection: ConnectionId) {
        self.unkept.forget(connection);
        self.barriers.forget(connection);
        self.counted.forget(connection);
        self.board.forget(name, connection);
    }

    /// Somebody knows that a missing member does not come back.
    pub(super) fn forget(&mut self, name: &str) -> Result<Answer, CallError> {
        match self.members.get(name) {
            Some(Entry::Missing { .. }) => {
                self.members.remove(name);
                self.tell_members();
                Ok(Answer::Done)
            }
            _ => Err(CallError::NotMissing { name: name.into() }),
        }
    }

    pub(super) fn expire_peers(&mut self) {
        let late = self.peers.iter();
        let late = late.filter(|(_, peer)| peer.deadline() <= self.now);
        let late: Vec<_> = late
            .map(|(connection, peer)| (*connection, peer.is_stranger()))
            .collect();
        for (connection, is_stranger) in late {
            let what = if is_stranger { "its join" } else { "anything" };
            let what = what.into();
            self.disconnect(connection, Refusal::Silent { what });
        }
        let now = self.now;
        let before = self.members.len();
        self.members
            .retain(|_, entry| entry.strike_ns().is_none_or(|strike| strike > now));
        if self.members.len() != before {
            self.tell_members();
        }
    }
}

/// What a peer said at the wrong time, without what is in it.
fn nonsense(message: &ToCoordinator) -> Refusal {
    let what = match message {
        ToCoordinator::Hello { .. } => "another hello",
        ToCoordinator::Join { .. } => "a join that answers no challenge",
        ToCoordinator::Leave => "a leave of who is no member",
        ToCoordinator::Ping => "a ping before the join",
        ToCoordinator::Call { .. } => "a call before the join",
        ToCoordinator::Done { .. } | ToCoordinator::GetsOn { .. } => "a phase of who is no member",
    };
    Refusal::Nonsense { what: what.into() }
}
