//! How the cards of a test's cases run.

#[cfg(feature = "cards")]
mod of_cards {
    use std::{
        env,
        fs::File,
        io::{self, Write},
    };

    pub use snaprig_card_platform::Kind as Platform;

    use crate::case::{Setup, path};

    /// The platforms of a test, each for so many cases; `None` is the best that works. One that does not work here is named
    /// as skipped.
    pub fn of(setup: &Setup, cases: usize) -> Vec<Option<Platform>> {
        let mut platforms = asked_for(setup);
        platforms.retain(|platform| *platform != Some(Platform::Kvm) || kvm_works(setup, cases));
        platforms
    }

    fn asked_for(setup: &Setup) -> Vec<Option<Platform>> {
        if !setup.needs_rig {
            return vec![None];
        }
        let parse = |name: &str| name.parse().ok();
        match env::var("SNAPRIG_PLATFORM") {
            Ok(name) => match parse(&name) {
                Some(platform) => vec![Some(platform)],
                None => panic!("SNAPRIG_PLATFORM={name}: there are kvm and ptrace"),
            },
            Err(_) if setup.platforms.is_empty() => vec![None],
            Err(_) => setup.platforms.iter().map(|name| parse(name)).collect(),
        }
    }

    fn kvm_works(setup: &Setup, cases: usize) -> bool {
        let works = File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok();
        if !works {
            let name = path(setup);
            let line = format!("skipped: {name}: {cases} cases on kvm: /dev/kvm does not open");
            // Past the test harness, which shows nothing of tests that pass. If it cannot be said, there is nobody to read
            // it.
            let _ = writeln!(io::stderr(), "{line}");
        }
        works
    }
}

#[cfg(feature = "cards")]
pub use of_cards::{Platform, of};

/// There are no cards, and so no platform.
#[cfg(not(feature = "cards"))]
pub use std::convert::Infallible as Platform;

/// Once, on none.
#[cfg(not(feature = "cards"))]
pub fn of(_: &super::Setup, _: usize) -> Vec<Option<Platform>> {
    vec![None]
}
