//! `libibverbs.map` and the lists of `symbols.rs` against each other and against Debian's library.

use std::{collections::BTreeSet, process::Command};

use snaprig_verbs_abi::{old_functions, private_functions, symbols};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

/// A symbol: its name, its version, and whether another version of it, or none, is the default.
type Symbol = (String, String, bool);

fn of_map() -> BTreeSet<Symbol> {
    let (mut all, mut node) = (BTreeSet::new(), "");
    for line in symbols::MAP.lines() {
        if let Some(name) = line.strip_suffix(" {") {
            node = name;
        } else if let Some((name, rest)) = line.trim().split_once(';')
            && line.starts_with("\t\t")
        {
            all.insert((name.into(), node.into(), rest.contains("old")));
        }
    }
    all
}

#[test]
#[cfg_attr(
    not(has_libibverbs_44),
    ignore = "libibverbs 44 is not installed (ci/setup installs it)"
)]
fn the_map_is_that_of_the_library() {
    let objdump = Command::new("objdump")
        .arg("-T")
        .arg(LIBRARY)
        .output()
        .expect("objdump");
    let mut library = BTreeSet::new();
    for line in String::from_utf8(objdump.stdout).unwrap().lines() {
        if let [.., section, size, version, name] = line.split_whitespace().collect::<Vec<_>>()[..]
            && ![section, size].iter().any(|word| word.starts_with('*'))
            && version.contains("IBVERBS_")
        {
            let node = version.trim_matches(['(', ')']);
            if name != node {
                library.insert((name.to_string(), node.to_string(), version != node));
            }
        }
    }
    assert_eq!(of_map(), library);
}

#[test]
fn the_lists_are_parts_of_the_map() {
    macro_rules! names {
        ($($name:ident)*) => { [$(stringify!($name)),*] };
    }
    let of = |node: &str, old: bool| -> Vec<String> {
        let all = of_map()
            .into_iter()
            .filter(|symbol| symbol.1 == node && symbol.2 == old);
        all.map(|symbol| symbol.0).collect()
    };
    let mut private = private_functions!(names).to_vec();
    private.push(symbols::PRIVATE_BOOL);
    private.sort_unstable();
    assert_eq!(private, of("IBVERBS_PRIVATE_34", false));
    assert_eq!(old_functions!(names).to_vec(), of("IBVERBS_1.0", true));
    assert_eq!(of("IBVERBS_1.1", true), ["ibv_register_driver"]);
}
