//! Users, groups and capabilities of threads (credentials(7), capabilities(7)).
//!
//! What must stay true: no thread has more rights than it had. Who is not root is restarted as the same user in a
//! namespace of that user's, without capabilities; other users cannot be had there.

use snaprig_resources::{
    error::{Error, Result},
    growing::Data,
    state::Credentials,
};
use snaprig_tracee::remote::{Call, call};

/// SECBIT_NO_SETUID_FIXUP: a change of user takes no capabilities.
const NO_SETUID_FIXUP: u64 = 1 << 2;
/// `_LINUX_CAPABILITY_VERSION_3`, and 0: the calling thread.
const HEADER: u64 = 0x2008_0522;
/// Capabilities that there can be.
const CAPABILITIES: u64 = 64;

/// The calls that give a thread its credentials, if they are not those of its supervisor.
pub fn calls(
    own: &Credentials,
    wanted: &Credentials,
    is_root: bool,
    data: &mut Data,
) -> Result<Vec<Call>> {
    let bits = |bits| call(libc::SYS_prctl, [libc::PR_SET_SECUREBITS as u64, bits]);
    if !is_root {
        if (own.users, own.groups) != (wanted.users, wanted.groups) {
            let what = format!(
                "a program of user {}, group {}: only root can",
                wanted.users[1], wanted.groups[1]
            );
            return Err(Error::Missing { what });
        }
        let header = data.put(&HEADER.to_ne_bytes());
        let none = data.put(&[0; 24]);
        let mut calls = dropped(own, wanted);
        if own.secure_bits != wanted.secure_bits {
            calls.push(bits(wanted.secure_bits.into()));
        }
        calls.push(call(libc::SYS_capset, [header, none]));
        return Ok(calls);
    }
    if own == wanted {
        return Ok(Vec::new());
    }
    let list: Vec<u8> = wanted.more.iter().flat_map(|id| id.to_ne_bytes()).collect();
    let list = data.put(&list);
    let of = |ids: [u32; 4]| ids.map(u64::from);
    let ([user, effective, saved, files], groups) = (of(wanted.users), of(wanted.groups));
    let mut calls = vec![
        bits(NO_SETUID_FIXUP),
        call(libc::SYS_setgroups, [wanted.more.len() as u64, list]),
        call(libc::SYS_setresgid, [groups[0], groups[1], groups[2]]),
        call(libc::SYS_setresuid, [user, effective, saved]),
        call(libc::SYS_setfsgid, [groups[3]]),
        call(libc::SYS_setfsuid, [files]),
    ];
    calls.extend(dropped(own, wanted));
    calls.push(bits(wanted.secure_bits.into()));
    // The kernel's struct: effective, permitted, inheritable; low words, then high words.
    let sets = [wanted.effective, wanted.permitted, wanted.inheritable];
    let words = [0, 32].map(|shift| sets.map(|set| (set >> shift) as u32));
    let bytes: Vec<u8> = words
        .as_flattened()
        .iter()
        .flat_map(|w| w.to_ne_bytes())
        .collect();
    let (header, sets) = (data.put(&HEADER.to_ne_bytes()), data.put(&bytes));
    calls.push(call(libc::SYS_capset, [header, sets]));
    for capability in (0..CAPABILITIES).filter(|bit| wanted.ambient & (1 << bit) != 0) {
        let (ambient, raise) = (
            libc::PR_CAP_AMBIENT as u64,
            libc::PR_CAP_AMBIENT_RAISE as u64,
        );
        calls.push(call(libc::SYS_prctl, [ambient, raise, capability, 0, 0]));
    }
    Ok(calls)
}

/// What leaves the bounding set.
fn dropped(own: &Credentials, wanted: &Credentials) -> Vec<Call> {
    let is_dropped = |bit: &u64| own.bounding & !wanted.bounding & (1 << bit) != 0;
    let drop = |bit| call(libc::SYS_prctl, [libc::PR_CAPBSET_DROP as u64, bit]);
    (0..CAPABILITIES).filter(is_dropped).map(drop).collect()
}
