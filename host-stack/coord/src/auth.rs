//! How a coordinator and its peers prove to each other that they know the job's token ([`snaprig_peers::token`]).

use snaprig_peers::{Nonce, Proof, Token};

use crate::message::Role;

/// What the coordinator's proof is about, and the peer's: none passes for the other.
const COORDINATOR: &str = "snaprig coordinator 1: coordinator";
const PEER: &str = "snaprig coordinator 1: peer";

/// The coordinator's proof to a peer with this nonce.
pub fn proof_of_coordinator(token: &Token, peer: &Nonce, own: &Nonce) -> Proof {
    token.proof(COORDINATOR, [peer, own], &[])
}

/// A peer's proof to a coordinator with this nonce, good for this job and role only.
pub fn proof_of_peer(
    token: &Token,
    own: &Nonce,
    coordinator: &Nonce,
    job: &str,
    role: &Role,
) -> Proof {
    let joins = snaprig_wire::frame::encode(&(job, role));
    token.proof(PEER, [own, coordinator], &joins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use snaprig_peers::token::is_same;

    #[test]
    fn a_proof_is_good_for_one_side_and_what_was_joined_as() {
        let (token, a, b) = (Token::new([1; 32]), [3; 32], [4; 32]);
        let role = Role::Control;
        let proof = proof_of_peer(&token, &a, &b, "job", &role);
        let member = Role::Member {
            name: "0".into(),
            incarnation: 1,
            is_heir: false,
        };
        let others = [
            proof_of_peer(&token, &a, &b, "jo", &role),
            proof_of_peer(&token, &a, &b, "job", &member),
            proof_of_coordinator(&token, &a, &b),
        ];
        for wrong in others {
            assert!(!is_same(&proof, &wrong));
        }
    }
}
