//! Environment variables that COI's host library knows, and what they stand for.
//!
//! | variable | |
//! |---|---|
//! | `SINK_LD_LIBRARY_PATH` | where libraries for cards are |
//! | `SINK_LD_PRELOAD` | libraries to bring along and load first |
//! | `SINK_LD_TRACE_LOADED_OBJECTS` | only say which libraries a program needs |
//! | `SNAPRIG_SNAPIFY` | `off`: no process can be snapshot, and nothing is done for that |
//! | `COI_HOST_THREAD_AFFINITY` | processors for this library's threads |

use std::{
    env, mem,
    path::{Path, PathBuf},
};

use crate::{
    arguments::text,
    result::{Done, Failure, code},
    strings::Environment,
};

/// Where libraries for cards are: in the first of these directories that has one.
pub fn library_path(given: Option<&str>) -> Vec<PathBuf> {
    let path = match given {
        Some(path) => path.into(),
        None => env::var_os("SINK_LD_LIBRARY_PATH").unwrap_or_default(),
    };
    env::split_paths(&path)
        .filter(|directory| !directory.as_os_str().is_empty())
        .collect()
}

/// A library's file: where its name says, seen from here, or in one of the directories.
pub fn find_library(name: &str, given: Option<&str>) -> Done<PathBuf> {
    let directories = match name.starts_with('/') {
        true => Vec::new(),
        false => library_path(given),
    };
    let there = directories.iter().map(|directory| directory.join(name));
    let mut paths = [PathBuf::from(name)].into_iter().chain(there);
    paths.find(|path| path.exists()).ok_or_else(|| {
        let why = format!("no {name} here, nor in SINK_LD_LIBRARY_PATH or the path given");
        Failure::new(code::DOES_NOT_EXIST, why)
    })
}

/// SINK_LD_PRELOAD.
pub fn preload() -> Done<Vec<PathBuf>> {
    let names = env::var("SINK_LD_PRELOAD").unwrap_or_default();
    let names = names.split(':').filter(|name| !name.is_empty());
    names
        .map(|name| {
            let path = find_library(name, None)?;
            crate::elf::library(&read(&path)?)?;
            Ok(path)
        })
        .collect()
}

/// A file's bytes.
pub fn read(path: &Path) -> Done<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        Failure::new(
            code::ERROR,
            format!("{} cannot be read: {error}", path.display()),
        )
    })
}

/// Whether it is only asked which libraries a program needs.
pub fn trace_libraries() -> bool {
    env::var_os("SINK_LD_TRACE_LOADED_OBJECTS").is_some_and(|value| !value.is_empty())
}

/// A process's environment: the caller's, if it is to have that, and what is added, which goes first.
///
/// # Safety
/// `added` is null, or an array of strings that ends with a null pointer; both stay during the
/// call.
pub unsafe fn of_process(inherit: bool, added: Environment) -> Vec<String> {
    let mut variables: Vec<(String, String)> = match inherit {
        true => env::vars_os()
            .map(|(name, value)| {
                let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
                (text(name), text(value))
            })
            .collect(),
        false => Vec::new(),
    };
    let mut at = added.0;
    while !at.is_null() {
        // SAFETY: the caller says that the array ends with a null pointer. `at` is not beyond it,
        // for the loop ends there, and every entry before it is a string.
        let Some(line) = (unsafe { text(*at) }) else {
            break;
        };
        if let Some((name, value)) = line.split_once('=') {
            variables.retain(|(known, _)| known != name);
            variables.push((name.to_owned(), value.to_owned()));
        }
        // SAFETY: the entry at `at` was a string, so that the array goes on behind it, at least to
        // the null pointer that ends it.
        at = unsafe { at.add(1) };
    }
    variables
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// While it is there, threads that the caller starts run on the processors of
/// COI_HOST_THREAD_AFFINITY: they inherit the caller's.
pub struct Affinity(Option<libc::cpu_set_t>);

impl Affinity {
    pub fn enter() -> Done<Self> {
        let Ok(list) = env::var("COI_HOST_THREAD_AFFINITY") else {
            return Ok(Self(None));
        };
        let wanted = processors(&list)?;
        // SAFETY: the set is of integers alone, so that zeroes, with which no processor is in it,
        // are a value of it.
        let mut before: libc::cpu_set_t = unsafe { mem::zeroed() };
        let bytes = size_of::<libc::cpu_set_t>();
        // SAFETY: both sets are on this stack and of `bytes` bytes; the kernel writes no more than
        // that to the first, and only reads the second. A set of no processor that is online is
        // refused, and changes nothing.
        unsafe {
            libc::sched_getaffinity(0, bytes, &raw mut before);
            libc::sched_setaffinity(0, bytes, &raw const wanted);
        }
        Ok(Self(Some(before)))
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: the set is of the size that is told, and only read; the kernel itself gave
            // it.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), before) };
        }
    }
}

/// The processors of a list such as `0,2,3`. What is no number is passed over.
fn processors(list: &str) -> Done<libc::cpu_set_t> {
    // SAFETY: sysconf(3) takes a number, and returns one.
    let most = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    // SAFETY: the set is of integers alone, so that zeroes, with which no processor is in it, are a
    // value of it.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for number in list
        .split(',')
        .filter_map(|item| item.parse::<usize>().ok())
    {
        if i64::try_from(number).is_ok_and(|number| number > most)
            || number >= libc::CPU_SETSIZE as usize
        {
            let why = format!("COI_HOST_THREAD_AFFINITY names processor {number}, of {most}");
            return Err(Failure::new(code::OUT_OF_RANGE, why));
        }
        // SAFETY: the set is borrowed exclusively, and the number is less than CPU_SETSIZE, so that
        // its bit is within it.
        unsafe { libc::CPU_SET(number, &mut set) };
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strings::Text;

    #[test]
    fn added_variables_take_the_place_of_inherited_ones() {
        let added = [c"PATH=/card".as_ptr(), c"NEW=1".as_ptr(), std::ptr::null()].map(Text);
        let added = Environment(added.as_ptr());
        // SAFETY: `added` is a vector of this test whose last entry is a null pointer, and its
        // other entries are static strings.
        let all = unsafe { of_process(true, added) };
        let paths: Vec<_> = all
            .iter()
            .filter(|line| line.starts_with("PATH="))
            .collect();
        assert_eq!(paths, ["PATH=/card"]);
        // SAFETY: `added` is a vector of this test whose last entry is a null pointer, and its
        // other entries are static strings.
        let alone = unsafe { of_process(false, added) };
        assert_eq!(alone, ["PATH=/card", "NEW=1"]);
    }

    #[test]
    fn a_processor_that_there_is_not() {
        assert!(processors("0,x").is_ok());
        assert_eq!(
            processors("0,900").map(|_| ()).map_err(|f| f.code),
            Err(code::OUT_OF_RANGE)
        );
    }
}
