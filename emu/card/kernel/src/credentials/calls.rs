//! Calls about who a process acts for.

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use super::{
    ALL, CAP_LAST, CAP_SETGID, CAP_SETPCAP, CAP_SETUID, Credentials, GROUPS_MAX, Ids, KEEP,
    VERSIONS,
};
use crate::call::Call;

/// Whether a call is about users, or about groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    User,
    Group,
}

impl Call<'_> {
    /// Runs a call about credentials; `None` if it is none.
    pub fn credentials_call(&mut self, number: u64, a: [u64; 6]) -> Option<SysResult> {
        use Kind::{Group, User};
        let id = |i: usize| a[i] as u32;
        let own = &self.process().credentials;
        Some(match number as i64 {
            libc::SYS_getuid => Ok(own.uid.real.into()),
            libc::SYS_geteuid => Ok(own.uid.effective.into()),
            libc::SYS_getgid => Ok(own.gid.real.into()),
            libc::SYS_getegid => Ok(own.gid.effective.into()),
            libc::SYS_setuid => self.set_id(User, id(0)),
            libc::SYS_setgid => self.set_id(Group, id(0)),
            libc::SYS_setreuid => self.set_two(User, id(0), id(1)),
            libc::SYS_setregid => self.set_two(Group, id(0), id(1)),
            libc::SYS_setresuid => self.set_three(User, [id(0), id(1), id(2)]),
            libc::SYS_setresgid => self.set_three(Group, [id(0), id(1), id(2)]),
            libc::SYS_setfsuid => self.set_files_id(User, id(0)),
            libc::SYS_setfsgid => self.set_files_id(Group, id(0)),
            libc::SYS_getresuid => self.get_three(User, a),
            libc::SYS_getresgid => self.get_three(Group, a),
            libc::SYS_getgroups => self.getgroups(a[0] as i32, a[1]),
            libc::SYS_setgroups => self.setgroups(a[0] as u32, a[1]),
            libc::SYS_capget => self.capget(a[0], a[1]),
            libc::SYS_capset => self.capset(a[0], a[1]),
            _ => return None,
        })
    }

    fn ids(&mut self, kind: Kind) -> (Ids, bool) {
        let own = &self.process().credentials;
        match kind {
            Kind::User => (own.uid, own.can(CAP_SETUID)),
            Kind::Group => (own.gid, own.can(CAP_SETGID)),
        }
    }

    fn put_ids(&mut self, kind: Kind, ids: Ids) -> SysResult {
        let own = &mut self.process().credentials;
        match kind {
            Kind::Group => own.gid = ids,
            Kind::User => {
                let before = std::mem::replace(&mut own.uid, ids);
                own.users_changed(before);
            }
        }
        Ok(0)
    }

    fn set_id(&mut self, kind: Kind, id: u32) -> SysResult {
        let (mut ids, privileged) = self.ids(kind);
        if id == KEEP {
            return Err(Errno::EINVAL.into());
        }
        if privileged {
            (ids.real, ids.saved) = (id, id);
        } else if id != ids.real && id != ids.saved {
            return Err(Errno::EPERM.into());
        }
        (ids.effective, ids.files) = (id, id);
        self.put_ids(kind, ids)
    }

    fn set_two(&mut self, kind: Kind, real: u32, effective: u32) -> SysResult {
        let (old, privileged) = self.ids(kind);
        let mut ids = old;
        if real != KEEP {
            if !privileged && ![old.real, old.effective].contains(&real) {
                return Err(Errno::EPERM.into());
            }
            ids.real = real;
        }
        if effective != KEEP {
            if !privileged && !old.has(effective) {
                return Err(Errno::EPERM.into());
            }
            ids.effective = effective;
        }
        if real != KEEP || effective != KEEP && effective != old.real {
            ids.saved = ids.effective;
        }
        ids.files = ids.effective;
        self.put_ids(kind, ids)
    }

    fn set_three(&mut self, kind: Kind, new: [u32; 3]) -> SysResult {
        let (old, privileged) = self.ids(kind);
        if !privileged && new.iter().any(|id| *id != KEEP && !old.has(*id)) {
            return Err(Errno::EPERM.into());
        }
        let now = [old.real, old.effective, old.saved];
        let changes = |(new, now): (u32, u32)| new != KEEP && new != now;
        let nothing = !new.into_iter().zip(now).any(changes);
        if nothing && (new[1] == KEEP || new[1] == old.files) {
            return Ok(0);
        }
        let mut ids = old;
        for (id, new) in [&mut ids.real, &mut ids.effective, &mut ids.saved]
            .into_iter()
            .zip(new)
        {
            if new != KEEP {
                *id = new;
            }
        }
        ids.files = ids.effective;
        self.put_ids(kind, ids)
    }

    /// setfsuid(2) and setfsgid(2) return what was before, whether it has changed or not.
    fn set_files_id(&mut self, kind: Kind, id: u32) -> SysResult {
        let (mut ids, privileged) = self.ids(kind);
        let before = ids.files;
        if id != KEEP && (privileged || ids.has(id) || id == before) {
            ids.files = id;
            self.put_ids(kind, ids)?;
        }
        Ok(before.into())
    }

    fn get_three(&mut self, kind: Kind, a: [u64; 6]) -> SysResult {
        let (ids, _) = self.ids(kind);
        for (to, id) in a.into_iter().zip([ids.real, ids.effective, ids.saved]) {
            self.write(to, &id.to_le_bytes())?;
        }
        Ok(0)
    }

    fn getgroups(&mut self, room: i32, to: u64) -> SysResult {
        let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
        let groups = self.process().credentials.groups.clone();
        if room > 0 {
            if groups.len() > room {
                return Err(Errno::EINVAL.into());
            }
            let bytes: Vec<u8> = groups.iter().flat_map(|id| id.to_le_bytes()).collect();
            self.write(to, &bytes)?;
        }
        Ok(groups.len() as u64)
    }

    fn setgroups(&mut self, count: u32, from: u64) -> SysResult {
        if !self.process().credentials.can(CAP_SETGID) {
            return Err(Errno::EPERM.into());
        }
        if u64::from(count) > GROUPS_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut bytes = vec![0; count as usize * 4];
        self.read(from, &mut bytes)?;
        let id = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let mut groups: Vec<u32> = bytes.chunks_exact(4).map(id).collect();
        if groups.contains(&KEEP) {
            return Err(Errno::EINVAL.into());
        }
        groups.sort_unstable();
        self.process().credentials.groups = groups;
        Ok(0)
    }

    /// Words of each set in the version that a `cap_user_header_t` names, and the process. A version
    /// that there is not is answered with the newest.
    fn capability_header(
        &mut self,
        header: u64,
    ) -> Result<(Option<usize>, u64), snaprig_card_driver::wait::Stop> {
        let version = self.read_u32(header)?;
        let known = VERSIONS.iter().find(|(number, _)| *number == version);
        if known.is_none() {
            self.write(header, &VERSIONS[2].0.to_le_bytes())?;
        }
        Ok((known.map(|(_, words)| *words), header.wrapping_add(4)))
    }

    fn capget(&mut self, header: u64, data: u64) -> SysResult {
        let (words, pid) = self.capability_header(header)?;
        let Some(words) = words.filter(|_| data != 0) else {
            return match (words, data) {
                (None, 1..) => Err(Errno::EINVAL.into()),
                _ => Ok(0),
            };
        };
        let pid = self.read_u32(pid)? as i32;
        if pid < 0 {
            return Err(Errno::EINVAL.into());
        }
        let pid = match pid {
            0 => self.pid,
            tid => {
                let thread = self.state.threads.get(&tid);
                thread.map(|thread| thread.pid).ok_or(Errno::ESRCH)?
            }
        };
        let own = &self.state.process(pid).credentials;
        let sets = [own.effective, own.permitted, own.inheritable];
        let bytes: Vec<u8> = (0..words)
            .flat_map(|word| sets.map(|set| (set >> (32 * word)) as u32))
            .flat_map(u32::to_le_bytes)
            .collect();
        self.write(data, &bytes)?;
        Ok(0)
    }

    fn capset(&mut self, header: u64, data: u64) -> SysResult {
        let (words, pid) = self.capability_header(header)?;
        let words = words.ok_or(Errno::EINVAL)?;
        let pid = self.read_u32(pid)? as i32;
        if pid != 0 && pid != self.tid {
            return Err(Errno::EPERM.into());
        }
        let mut bytes = vec![0; words * 12];
        self.read(data, &mut bytes)?;
        let mut sets = [0_u64; 3];
        for (index, word) in bytes.chunks_exact(4).enumerate() {
            let word = u32::from_le_bytes(word.try_into().expect("4 bytes"));
            sets[index % 3] |= u64::from(word) << (index / 3 * 32);
        }
        let [effective, permitted, inheritable] = sets.map(|set| set & ALL);
        let own = &mut self.process().credentials;
        let within = |set: u64, bound: u64| set & !bound == 0;
        let may_inherit =
            own.can(CAP_SETPCAP) || within(inheritable, own.inheritable | own.permitted);
        if !may_inherit
            || !within(inheritable, own.inheritable | own.bounding)
            || !within(permitted, own.permitted)
            || !within(effective, permitted)
        {
            return Err(Errno::EPERM.into());
        }
        (own.effective, own.permitted, own.inheritable) = (effective, permitted, inheritable);
        own.ambient &= permitted & inheritable;
        Ok(0)
    }

    /// The options of prctl(2) about capabilities; `None` if it is none.
    pub fn prctl_capabilities(&mut self, option: i32, a: [u64; 4]) -> Option<SysResult> {
        const PR_CAP_AMBIENT: i32 = 47;
        let own = &mut self.process().credentials;
        let capability = |number: u64| (number <= CAP_LAST.into()).then(|| 1_u64 << number);
        Some(match option {
            libc::PR_GET_KEEPCAPS => Ok(own.keeps.into()),
            libc::PR_SET_KEEPCAPS if a[0] > 1 => Err(Errno::EINVAL.into()),
            libc::PR_SET_KEEPCAPS => {
                own.keeps = a[0] == 1;
                Ok(0)
            }
            libc::PR_CAPBSET_READ => match capability(a[0]) {
                Some(bit) => Ok((own.bounding & bit != 0).into()),
                None => Err(Errno::EINVAL.into()),
            },
            libc::PR_CAPBSET_DROP => match capability(a[0]) {
                _ if !own.can(CAP_SETPCAP) => Err(Errno::EPERM.into()),
                None => Err(Errno::EINVAL.into()),
                Some(bit) => {
                    own.bounding &= !bit;
                    Ok(0)
                }
            },
            PR_CAP_AMBIENT => ambient(own, a).map_err(Into::into),
            _ => return None,
        })
    }
}

/// PR_CAP_AMBIENT.
fn ambient(own: &mut Credentials, a: [u64; 4]) -> Result<u64, Errno> {
    const IS_SET: u64 = 1;
    const RAISE: u64 = 2;
    const LOWER: u64 = 3;
    const CLEAR_ALL: u64 = 4;
    if a[0] == CLEAR_ALL {
        if a[1..] != [0; 3] {
            return Err(Errno::EINVAL);
        }
        own.ambient = 0;
        return Ok(0);
    }
    if a[2..] != [0; 2] || a[1] > CAP_LAST.into() {
        return Err(Errno::EINVAL);
    }
    let bit = 1_u64 << a[1];
    match a[0] {
        IS_SET => return Ok((own.ambient & bit != 0).into()),
        RAISE if own.permitted & own.inheritable & bit == 0 => return Err(Errno::EPERM),
        RAISE => own.ambient |= bit,
        LOWER => own.ambient &= !bit,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
