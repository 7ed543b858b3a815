//! What the daemon puts into the environment of an offload process, and the runtime takes out.

use std::{collections::BTreeSet, ffi::CStr, path::Path};

use snaprig_offload_wire::coi::{LIBRARIES, Library, Program, USUAL_DIRECTORIES};

/// The process is an offload process.
pub const MODE: &CStr = c"COI_MODE";
/// `off`: the host does without snapshots of this process.
pub const SNAPIFY: &CStr = c"SNAPRIG_SNAPIFY";
/// Variables of the loader's that the daemon sets, and where the user's own are meanwhile: programs
/// that the process starts get those.
pub const USER_VARIABLES: [(&CStr, &CStr); 2] = [
    (c"LD_LIBRARY_PATH", c"COI_USER_LD_LIBRARY_PATH"),
    (c"LD_PRELOAD", c"COI_USER_LD_PRELOAD"),
];
/// The runtime as a library.
const RUNTIME: &str = "libcoi_device.so.0";

/// The environment of a program: the host's, and what makes the loader find the libraries that came
/// along.
pub fn of(program: &Program) -> Vec<String> {
    let mut paths = directories(&program.libraries);
    let mut preload: Vec<String> = Vec::new();
    let runtime = |library: &&Library| Path::new(&library.path).ends_with(RUNTIME);
    let runtime = program.libraries.iter().find(runtime);
    preload.extend(runtime.map(|library| library.path.clone()));
    let mut env = vec!["COI_MODE=1".to_owned()];
    for variable in &program.env {
        match variable.split_once('=') {
            Some(("LD_LIBRARY_PATH", users)) => {
                env.push(format!("COI_USER_LD_LIBRARY_PATH={users}"));
                paths.extend(users.split(':').map(str::to_owned));
            }
            Some(("LD_PRELOAD", users)) => {
                env.push(format!("COI_USER_LD_PRELOAD={users}"));
                preload.push(users.to_owned());
            }
            _ => env.push(variable.clone()),
        }
    }
    if !paths.is_empty() {
        env.push(format!("LD_LIBRARY_PATH={}", paths.join(":")));
    }
    if !preload.is_empty() {
        env.push(format!("LD_PRELOAD={}", preload.join(":")));
    }
    env
}

/// Where the libraries are, in order, each once; after them where those go that the process loads later,
/// and the usual directories last, or they would hide others. A static program has no libraries.
fn directories(libraries: &[Library]) -> Vec<String> {
    let parents = libraries
        .iter()
        .filter_map(|library| Path::new(&library.path).parent()?.to_str());
    let (usual, mut others): (Vec<_>, Vec<_>) =
        parents.partition(|parent| USUAL_DIRECTORIES.contains(parent));
    if !libraries.is_empty() {
        others.push(LIBRARIES);
    }
    let mut seen = BTreeSet::new();
    let all = others.into_iter().chain(usual);
    let once = all.filter(|parent| seen.insert(*parent));
    once.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(libraries: &[&str], env: &[&str]) -> Program {
        let library = |path: &&str| Library {
            path: (*path).to_owned(),
            bytes: 1,
            window: 0,
            hash: 0,
        };
        Program {
            name: "sink".into(),
            bytes: 1,
            window: 0,
            argv: vec!["sink".into()],
            env: env.iter().map(|one| (*one).to_owned()).collect(),
            libraries: libraries.iter().map(library).collect(),
            proxy: false,
        }
    }

    #[test]
    fn a_static_program_gets_what_the_host_says() {
        let env = of(&program(&[], &["A=1", "B"]));
        assert_eq!(env, ["COI_MODE=1", "A=1", "B"]);
    }

    #[test]
    fn the_loader_finds_what_came_along_and_the_user_keeps_his_own() {
        let libraries = [
            "/lib64/ld-linux-x86-64.so.2",
            "/opt/mine/a.so",
            "/rig/lib/libcoi_device.so.0",
            "/opt/mine/b.so",
        ];
        let env = of(&program(
            &libraries,
            &["LD_LIBRARY_PATH=/u:/v", "LD_PRELOAD=x.so"],
        ));
        assert_eq!(
            env,
            [
                "COI_MODE=1",
                "COI_USER_LD_LIBRARY_PATH=/u:/v",
                "COI_USER_LD_PRELOAD=x.so",
                "LD_LIBRARY_PATH=/opt/mine:/rig/lib:/run/coi/libraries:/lib64:/u:/v",
                "LD_PRELOAD=/rig/lib/libcoi_device.so.0:x.so",
            ]
        );
    }
}
