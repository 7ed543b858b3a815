//! Writes memory that several processes can map.

use std::{fs::File, ops::Range};

use snaprig_tracee::{memory, ranges::Ranges};

use super::shared::{Mapping, SharedObject};
use crate::{
    copy::{PageWriter, write_mapped},
    error::{Error, Result},
    huge,
};

/// Writes shared memory: from its descriptor, or through who maps it. What was written.
pub fn write(space: u32, object: &SharedObject, writer: &mut dyn PageWriter) -> Result<Ranges> {
    if let Some((pid, fd)) = object.open {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = File::open(&path).map_err(|source| Error::io(path, source))?;
        return huge::save::write_any_file(space, &file, writer);
    }
    let mut written: Vec<Range<u64>> = Vec::new();
    for Mapping {
        pid, start, part, ..
    } in &object.mapped
    {
        if written.contains(part) {
            continue;
        }
        let file = memory::open(*pid, false)?;
        let bytes = part.end - part.start;
        let back = start.wrapping_sub(part.start);
        write_mapped(space, &file, *start..start + bytes, back, writer)?;
        written.push(part.clone());
    }
    Ok(written.into_iter().collect())
}
