//! rseq(2).

use snaprig_card_driver::{errno::Errno, wait::SysResult};
use snaprig_card_memory::USER_END;

use super::{ALIGN, ORIGINAL_BYTES, Rseq, UNINITIALIZED, UNREGISTER, section::write_ids};
use crate::{call::Call, state::lock};

impl Call<'_> {
    /// rseq.
    pub fn rseq(&mut self, address: u64, bytes: u32, flags: i32, signature: u32) -> SysResult {
        let now = self.thread().rseq;
        let is_same = now.address == address && now.bytes == bytes;
        if flags & UNREGISTER != 0 {
            if flags != UNREGISTER || now.address == 0 || !is_same {
                return Err(Errno::EINVAL.into());
            }
            if now.signature != signature {
                return Err(Errno::EPERM.into());
            }
            let mm = self.process().mm.clone();
            write_ids(&mut lock(&mm), &now, 0, UNINITIALIZED)?;
            self.thread().rseq = Rseq::default();
            return Ok(0);
        }
        if flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        if now.address != 0 {
            return Err(match is_same {
                false => Errno::EINVAL,
                true if now.signature != signature => Errno::EPERM,
                true => Errno::EBUSY,
            }
            .into());
        }
        if bytes < ORIGINAL_BYTES || !address.is_multiple_of(ALIGN) {
            return Err(Errno::EINVAL.into());
        }
        if address >= USER_END - u64::from(bytes) {
            return Err(Errno::EFAULT.into());
        }
        self.thread().rseq = Rseq {
            address,
            bytes,
            signature,
            core: None,
        };
        Ok(0)
    }
}
