//! Who a process acts for (credentials(7), capabilities(7)). Every program starts as root with all
//! capabilities; one that gives them up is told so, and may not signal others or take them back. The
//! files of a card are open to everybody.
//!
//! Linux keeps these for each thread, and its C libraries for each process; so does a card.

mod calls;

use serde::{Deserialize, Serialize};

/// Of capabilities(7), those that decide something here.
const CAP_KILL: u64 = 1 << 5;
const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;
const CAP_SETPCAP: u64 = 1 << 8;
/// The last that there is.
const CAP_LAST: u32 = 40;
const ALL: u64 = (1 << (CAP_LAST + 1)) - 1;
/// No change (setresuid(2)).
const KEEP: u32 = u32::MAX;
/// Most supplementary groups (getgroups(2)).
const GROUPS_MAX: u64 = 65_536;
/// `_LINUX_CAPABILITY_VERSION_1` to `_3`, with the words of each set.
const VERSIONS: [(u32, usize); 3] = [(0x1998_0330, 1), (0x2007_1026, 2), (0x2008_0522, 2)];

/// User or group ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// Who started it.
    pub real: u32,
    /// Whose rights it has.
    pub effective: u32,
    /// Whose rights it may have again.
    pub saved: u32,
    /// Whose rights it has to files (setfsuid(2)).
    pub files: u32,
}

impl Ids {
    fn has(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&id)
    }
}

/// Who a process acts for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Users.
    pub uid: Ids,
    /// Groups.
    pub gid: Ids,
    groups: Vec<u32>,
    effective: u64,
    permitted: u64,
    inheritable: u64,
    bounding: u64,
    ambient: u64,
    /// PR_SET_KEEPCAPS.
    keeps: bool,
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            uid: Ids::default(),
            gid: Ids::default(),
            groups: Vec::new(),
            effective: ALL,
            permitted: ALL,
            inheritable: 0,
            bounding: ALL,
            ambient: 0,
            keeps: false,
        }
    }
}

impl Credentials {
    /// Whether it may send signals to `other` (kill(2)).
    pub fn may_signal(&self, other: &Self) -> bool {
        let own = [self.uid.real, self.uid.effective];
        let theirs = [other.uid.real, other.uid.saved];
        self.can(CAP_KILL) || own.iter().any(|id| theirs.contains(id))
    }

    fn can(&self, capability: u64) -> bool {
        self.effective & capability != 0
    }

    /// execve(2): root has its capabilities again, others keep what is ambient.
    pub fn become_program(&mut self) {
        self.keeps = false;
        (self.uid.saved, self.gid.saved) = (self.uid.effective, self.gid.effective);
        let is_root = self.uid.real == 0 || self.uid.effective == 0;
        self.permitted = match is_root {
            true => self.inheritable | self.bounding,
            false => self.ambient,
        };
        self.effective = match self.uid.effective {
            0 => self.permitted,
            _ => self.ambient,
        };
    }

    /// What a change of users does to capabilities (capabilities(7)).
    fn users_changed(&mut self, before: Ids) {
        let had_root = before.has(0);
        if had_root && !self.uid.has(0) && !self.keeps {
            (self.permitted, self.effective, self.ambient) = (0, 0, 0);
        }
        match (before.effective, self.uid.effective) {
            (0, 1..) => self.effective = 0,
            (1.., 0) => self.effective = self.permitted,
            _ => {}
        }
    }
}
