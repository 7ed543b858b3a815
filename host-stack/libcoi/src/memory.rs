//! Memory of the program that a buffer is to be made of.

use std::fs;

use crate::result::{Done, Failure, code};

/// That all of it is there and can be written to, as /proc/self/maps has it (proc(5)).
pub fn writable(address: usize, bytes: u64) -> Done {
    let end = u64::try_from(address)
        .ok()
        .and_then(|at| at.checked_add(bytes));
    let (mut at, end) = match end {
        Some(end) => (address as u64, end),
        None => return Err(code::OUT_OF_RANGE.into()),
    };
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (from, to, writable) in maps.lines().filter_map(region) {
        if to <= at {
            continue;
        }
        if from > at {
            break;
        }
        if !writable {
            let why = format!("memory at {at:#x} cannot be written to");
            return Err(Failure::new(code::NOT_SUPPORTED, why));
        }
        at = to;
        if at >= end {
            return Ok(());
        }
    }
    let why = format!("there is no memory at {at:#x}");
    Err(Failure::new(code::INVALID_POINTER, why))
}

/// `55d0-55e0 rw-p ...`
fn region(line: &str) -> Option<(u64, u64, bool)> {
    let mut words = line.split(' ');
    let (from, to) = words.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(from)?, hex(to)?, words.next()?.contains('w')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_can_be_written_to_and_a_constant_cannot() {
        let here = [0_u8; 64];
        assert_eq!(writable(here.as_ptr().addr(), 64), Ok(()));
        let constant = "of the program's text".as_ptr().addr();
        let refused = writable(constant, 4).map_err(|f| f.code);
        assert_eq!(refused, Err(code::NOT_SUPPORTED));
        assert_eq!(
            writable(16, 4).map_err(|f| f.code),
            Err(code::INVALID_POINTER)
        );
        assert!(writable(usize::MAX, 4).is_err());
    }
}
