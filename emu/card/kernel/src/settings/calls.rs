//! prctl(2), personality(2), arch_prctl(2).

use snaprig_card_driver::{errno::Errno, signals::SIGNALS, wait::SysResult};
use snaprig_card_memory::USER_END;

use super::SLACK_NANOS;
use crate::call::Call;

impl Call<'_> {
    /// personality(2): it is told, and changes nothing.
    pub fn personality(&mut self, new: u32) -> SysResult {
        let settings = &mut self.process().settings;
        let before = settings.personality;
        if new != u32::MAX {
            settings.personality = new;
        }
        Ok(before.into())
    }

    /// prctl(2).
    pub fn prctl(&mut self, a: [u64; 6]) -> SysResult {
        const PR_GET_THP_DISABLE: i32 = 42;
        const PR_SET_THP_DISABLE: i32 = 41;
        const PR_TSC_ENABLE: u32 = 1;
        const PR_MCE_KILL_DEFAULT: u64 = 2;
        let (option, value, rest) = (a[0] as i32, a[1], [a[2], a[3], a[4]]);
        if let Some(result) = self.prctl_capabilities(option, [a[1], a[2], a[3], a[4]]) {
            return result;
        }
        let settings = &mut self.process().settings;
        match option {
            libc::PR_SET_NAME => return self.set_name(value),
            libc::PR_GET_NAME => {
                let mut name = self.thread().name.clone().into_bytes();
                name.resize(16, 0);
                self.write(value, &name)?;
            }
            libc::PR_SET_PDEATHSIG if value > SIGNALS as u64 => return Err(Errno::EINVAL.into()),
            libc::PR_SET_PDEATHSIG => settings.death_signal = value as i32,
            libc::PR_GET_PDEATHSIG => {
                let signal = settings.death_signal;
                self.write(value, &signal.to_le_bytes())?;
            }
            libc::PR_GET_DUMPABLE => return Ok(settings.is_dumpable.into()),
            libc::PR_SET_DUMPABLE if value > 1 => return Err(Errno::EINVAL.into()),
            libc::PR_SET_DUMPABLE => settings.is_dumpable = value == 1,
            libc::PR_SET_CHILD_SUBREAPER => settings.is_subreaper = value != 0,
            libc::PR_GET_CHILD_SUBREAPER => {
                let is = i32::from(settings.is_subreaper);
                self.write(value, &is.to_le_bytes())?;
            }
            libc::PR_SET_NO_NEW_PRIVS if value != 1 || rest != [0; 3] => {
                return Err(Errno::EINVAL.into());
            }
            libc::PR_SET_NO_NEW_PRIVS => settings.no_new_privileges = true,
            libc::PR_GET_NO_NEW_PRIVS if value != 0 || rest != [0; 3] => {
                return Err(Errno::EINVAL.into());
            }
            libc::PR_GET_NO_NEW_PRIVS => return Ok(settings.no_new_privileges.into()),
            PR_GET_THP_DISABLE if value != 0 || rest != [0; 3] => {
                return Err(Errno::EINVAL.into());
            }
            PR_GET_THP_DISABLE => return Ok(settings.no_huge_pages.into()),
            PR_SET_THP_DISABLE if rest != [0; 3] => return Err(Errno::EINVAL.into()),
            PR_SET_THP_DISABLE => settings.no_huge_pages = value != 0,
            libc::PR_GET_TIMERSLACK => return Ok(settings.slack_nanos),
            libc::PR_SET_TIMERSLACK => {
                let nanos = Some(value).filter(|nanos| (1..=i64::MAX as u64).contains(nanos));
                settings.slack_nanos = nanos.unwrap_or(SLACK_NANOS);
            }
            // Statistical, as ever.
            libc::PR_GET_TIMING => return Ok(0),
            libc::PR_SET_TIMING if value == 0 => {}
            libc::PR_GET_TSC => self.write(value, &PR_TSC_ENABLE.to_le_bytes())?,
            libc::PR_GET_TID_ADDRESS => {
                let address = self.thread().clear_child_tid;
                self.write_words(value, &[address])?;
            }
            libc::PR_MCE_KILL_GET if value == 0 && rest == [0; 3] => {
                return Ok(PR_MCE_KILL_DEFAULT);
            }
            libc::PR_GET_SECCOMP | libc::PR_GET_SECUREBITS => return Ok(0),
            _ => return Err(Errno::EINVAL.into()),
        }
        Ok(0)
    }

    fn set_name(&mut self, at: u64) -> SysResult {
        let mut name = [0; 16];
        for (i, byte) in name.iter_mut().take(15).enumerate() {
            let mut one = [0];
            self.read(at.wrapping_add(i as u64), &mut one)?;
            *byte = one[0];
            if one[0] == 0 {
                break;
            }
        }
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(15);
        self.thread().name = String::from_utf8_lossy(&name[..end]).into_owned();
        Ok(0)
    }

    /// arch_prctl(2).
    pub fn arch_prctl(&mut self, code: i32, value: u64) -> SysResult {
        const ARCH_SET_GS: i32 = 0x1001;
        const ARCH_SET_FS: i32 = 0x1002;
        const ARCH_GET_FS: i32 = 0x1003;
        const ARCH_GET_GS: i32 = 0x1004;
        let regs = &mut self.thread().regs;
        let in_user_space = value < USER_END;
        match code {
            ARCH_SET_FS if in_user_space => regs.fs_base = value,
            ARCH_SET_GS if in_user_space => regs.gs_base = value,
            ARCH_SET_FS | ARCH_SET_GS => return Err(Errno::EPERM.into()),
            ARCH_GET_FS => {
                let base = regs.fs_base;
                self.write_words(value, &[base])?;
            }
            ARCH_GET_GS => {
                let base = regs.gs_base;
                self.write_words(value, &[base])?;
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        Ok(0)
    }
}
