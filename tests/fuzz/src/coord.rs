//! A job's coordinator, and peers that say anything: strangers, members and those who order. Whatever
//! they say, it does not panic, it answers nobody who has not proved anything, and says nothing that
//! could not be read again.

use serde::{Serialize, de::DeserializeOwned};
use snaprig_coord::{
    auth::proof_of_peer,
    coordinator::{Config, Input, Machine, Output},
    message::{Role, ToCoordinator, ToMember, VERSION},
    migration,
};
use snaprig_peers::Token;
use snaprig_wire::frame;

use crate::bytes::Bytes;

const JOB: &str = "job";
/// Connections 0 and 1 are members', 2 is of who orders, 3 of a stranger.
const STRANGER: u64 = 3;
/// What is said at most in one run.
const MESSAGES_MAX: usize = 200;

fn token() -> Token {
    Token::new([5; 32])
}

fn role(connection: u64) -> Role {
    match connection {
        0 | 1 => Role::Member {
            name: connection.to_string(),
            incarnation: connection,
            is_heir: false,
        },
        _ => Role::Control,
    }
}

/// What such a peer says first.
pub fn hello(connection: u64) -> [ToCoordinator; 2] {
    let (nonce, role) = ([1; 32], role(connection));
    let proof = proof_of_peer(&token(), &nonce, &[connection as u8; 32], JOB, &role);
    let hello = ToCoordinator::Hello {
        version: VERSION,
        nonce,
    };
    let join = ToCoordinator::Join {
        job: JOB.into(),
        role,
        proof,
    };
    [hello, join]
}

/// Triples of a peer (u8), a time (u16, in milliseconds) and a message behind its length (u16).
pub fn coord(bytes: &[u8]) {
    again::<ToCoordinator>(bytes);
    again::<ToMember>(bytes);
    again::<migration::message::ToTarget>(bytes);
    again::<migration::message::ToSource>(bytes);
    let config = Config {
        job: JOB.into(),
        token: token(),
        members: Vec::new(),
        first_round: 1,
    };
    let (mut machine, mut now) = (Machine::new(config, 0), 0);
    for connection in 0..=STRANGER {
        let nonce = [connection as u8; 32];
        let connected = Input::Connected { connection, nonce };
        check(&machine.handle(connected, now), false);
        for message in hello(connection)
            .into_iter()
            .filter(|_| connection != STRANGER)
        {
            let said = Input::Message {
                connection,
                message,
            };
            check(&machine.handle(said, now), false);
        }
    }
    let mut bytes = Bytes(bytes);
    let mut said = 0;
    while !bytes.is_empty() && said < MESSAGES_MAX {
        said += 1;
        let (choice, ms) = (bytes.u8(), bytes.u16());
        now += u64::from(ms) * 1_000_000;
        let connection = u64::from(choice % 4);
        let len = bytes.u16().into();
        let message = frame::decode(&bytes.some(len));
        let input = match (choice / 4 % 8, message) {
            (0, _) => Input::Gone { connection },
            (1, _) => Input::Committed {
                round: u64::from(choice / 32),
                result: Ok(()),
            },
            (_, Ok(message)) => Input::Message {
                connection,
                message,
            },
            (_, Err(_)) => Input::Nonsense {
                connection,
                what: "what is no message".into(),
            },
        };
        check(&machine.handle(input, now), true);
        assert!(machine.deadline().is_none_or(|due| due > now));
    }
    again_as_it_was(&ToMember::Answer {
        id: 1,
        result: Ok(snaprig_coord::message::Answer::Status(Box::new(
            machine.status(),
        ))),
    });
}

fn check(outputs: &[Output], later: bool) {
    for output in outputs {
        let Output::Send {
            connection,
            message,
        } = output
        else {
            continue;
        };
        let of_strangers = matches!(message, ToMember::Challenge { .. } | ToMember::Refused(_));
        assert!(
            *connection != STRANGER || !later || of_strangers,
            "{message:?}"
        );
        again_as_it_was(message);
    }
}

fn again<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = frame::decode::<T>(bytes) {
        assert!(frame::decode(&frame::encode(&message)) == Ok(message));
    }
}

fn again_as_it_was(message: &ToMember) {
    let bytes = frame::encode(message);
    assert!(bytes.len() <= frame::MESSAGE_MAX);
    assert!(frame::decode(&bytes).as_ref() == Ok(message));
}
