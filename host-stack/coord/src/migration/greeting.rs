//! How both sides of a connection find out that the other one knows the token. The target proves it first: nobody
//! tells a stranger what is to come.

use snaprig_peers::{Nonce, Proof, Token, token::is_same};

use super::message::VERSION;

/// What the target's proof is about, and the source's: neither passes for the other.
const TARGET: &str = "snaprig migration 1: target ";
const SOURCE: &str = "snaprig migration 1: source ";

/// Which side somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Target,
}

/// One side's part of a connection's first messages.
#[derive(Debug)]
pub struct Greeting {
    side: Side,
    own: Nonce,
    peer: Option<Nonce>,
    is_over: bool,
}

/// What is to be done about a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// The other side says more.
    Wait,
    /// This is to be said, and the other side says more.
    Say(Proof),
    /// It is who it should be; this is to be said first, if there is something.
    Known(Option<Proof>),
    /// It is not who it should be, or says what makes no sense now.
    Refuse(String),
}

impl Greeting {
    /// Of a new connection: this side has said hello with this nonce.
    pub fn new(side: Side, own: Nonce) -> Self {
        Self {
            side,
            own,
            peer: None,
            is_over: false,
        }
    }

    /// Whether the other side has been found to be who it should be.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The other side says hello. Without a token, the kernel has said already who it is.
    pub fn hello(&mut self, version: u32, nonce: Nonce, token: Option<&Token>) -> Next {
        if version != VERSION {
            let why =
                format!("the other side speaks version {version} of migration, not {VERSION}");
            return Next::Refuse(why);
        }
        if self.peer.replace(nonce).is_some() {
            return Next::Refuse("the other side says hello twice".into());
        }
        match (token, self.side) {
            (None, _) => {
                self.is_over = true;
                Next::Known(None)
            }
            (Some(token), Side::Target) => Next::Say(self.proof(token, Side::Target, &nonce)),
            (Some(_), Side::Source) => Next::Wait,
        }
    }

    /// The other side proves that it knows the token.
    pub fn proof_came(&mut self, proof: &Proof, token: Option<&Token>) -> Next {
        let (Some(token), Some(peer), false) = (token, self.peer, self.is_over) else {
            return Next::Refuse("the other side proves what nobody has asked".into());
        };
        let other = match self.side {
            Side::Source => Side::Target,
            Side::Target => Side::Source,
        };
        if !is_same(proof, &self.proof(token, other, &peer)) {
            return Next::Refuse("the other side does not know the token (--token)".into());
        }
        self.is_over = true;
        let own = (self.side == Side::Source).then(|| self.proof(token, Side::Source, &peer));
        Next::Known(own)
    }

    /// What a side says that knows the token.
    fn proof(&self, token: &Token, of: Side, peer: &Nonce) -> Proof {
        // Of both nonces, that of whose proof it is comes first.
        let (own, other) = match of == self.side {
            true => (&self.own, peer),
            false => (peer, &self.own),
        };
        let context = match of {
            Side::Source => SOURCE,
            Side::Target => TARGET,
        };
        token.proof(context, [own, other], &[])
    }
}
