//! Programs of users that this program starts.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Names of programs that users ask for, or what they begin with, and Debian's packages that have them.
const PACKAGES: [(&str, &str); 15] = [
    ("gcc", "gcc"),
    ("g++", "g++"),
    ("ibv_", "ibverbs-utils"),
    ("ib_", "perftest"),
    ("raw_ethernet_", "perftest"),
    ("rping", "rdmacm-utils"),
    ("ucmatose", "rdmacm-utils"),
    ("udaddy", "rdmacm-utils"),
    ("rstream", "rdmacm-utils"),
    ("fi_", "libfabric-bin"),
    ("ucx_", "ucx-utils"),
    ("qperf", "qperf"),
    ("mpirun", "openmpi-bin"),
    ("mpiexec.hydra", "mpich"),
    ("python3", "python3"),
];

/// Why a program was not started, and what to do.
pub fn not_started(program: &OsStr, error: &io::Error) -> String {
    let name = Path::new(program).display();
    let is_named = !program.as_encoded_bytes().contains(&b'/');
    if error.kind() != io::ErrorKind::NotFound || !is_named {
        return format!("{name}: {error}");
    }
    let text = name.to_string();
    let package = PACKAGES
        .iter()
        .find(|(start, _)| text.starts_with(start))
        .map(|(_, package)| format!("; Debian's package {package} has it"));
    format!("no `{name}` on PATH{}", package.unwrap_or_default())
}

/// The file of a program for a card: where a shell would find it, or else in the working directory.
pub fn find(name: &str) -> Result<String, String> {
    find_in(&env::var_os("PATH").unwrap_or_default(), name)
}

fn find_in(path: &OsStr, name: &str) -> Result<String, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let is_program = |path: &PathBuf| {
        let metadata = path.metadata();
        metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let on_path = env::split_paths(path).map(|directory| directory.join(name));
    let found = on_path.chain([PathBuf::from(name)]).find(is_program);
    let found = found.ok_or_else(|| {
        let error = io::Error::from(io::ErrorKind::NotFound);
        not_started(name.as_ref(), &error)
    })?;
    let found = found.into_os_string().into_string();
    found.map_err(|found| format!("{}: not UTF-8", Path::new(&found).display()))
}

/// What a shell reads to have these variables.
pub fn exports<'a>(environment: impl IntoIterator<Item = &'a (&'static str, OsString)>) -> String {
    let line = |(name, value): &(&str, OsString)| {
        let value = value.to_string_lossy().replace('\'', r"'\''");
        format!("export {name}='{value}'\n")
    };
    environment.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_program_is_told_which_package_has_it() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let said = |program: &str| not_started(program.as_ref(), &missing);
        assert_eq!(
            said("ibv_rc_pingpong"),
            "no `ibv_rc_pingpong` on PATH; Debian's package ibverbs-utils has it"
        );
        assert_eq!(said("mine"), "no `mine` on PATH");
        assert_eq!(
            said("./ibv_mine"),
            "./ibv_mine: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn programs_for_cards_are_found_as_a_shell_finds_them() {
        let path = OsStr::new("/nowhere:/etc:/bin:/usr/bin");
        assert_eq!(find_in(path, "sh"), Ok("/bin/sh".into()));
        assert_eq!(find_in(path, "./sh"), Ok("./sh".into()));
        let missing = find_in(path, "passwd-of-nobody");
        assert_eq!(missing, Err("no `passwd-of-nobody` on PATH".into()));
        // A file that is no program, and a directory.
        assert!(find_in(OsStr::new("/etc"), "passwd").is_err());
        assert!(find_in(OsStr::new("/etc"), "ssl").is_err());
    }

    #[test]
    fn a_shell_reads_what_was_exported() {
        let value = "it's a\nvalue";
        assert_eq!(
            exports(&[("NAME", value.into())]),
            "export NAME='it'\\''s a\nvalue'\n"
        );
    }
}
