//! Planted bugs: a campaign that does not find them finds nothing. Each scenario declares its own, with
//! [`canaries!`](crate::canaries), and a run is told which one it has.

use std::convert::Infallible;

/// A planted bug, as the command line and reports call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Its name.
    pub name: &'static str,
    /// What is wrong, in a sentence.
    pub what: &'static str,
}

impl Canary {
    /// Whether a text is its name. Reports of earlier versions have underscores in names.
    pub fn is_called(&self, text: &str) -> bool {
        self.name == text.replace('_', "-")
    }
}

/// The planted bugs of a scenario, as the type that its code asks for.
pub trait PlantedBug: Copy + Send + 'static {
    /// All of them, with what others call them.
    const ALL: &'static [(Self, Canary)];

    /// The bug that others call so.
    fn of(canary: Canary) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(_, known)| *known == canary).map(|(bug, _)| *bug)
    }
}

/// A scenario without planted bugs.
impl PlantedBug for Infallible {
    const ALL: &'static [(Self, Canary)] = &[];
}

/// Declares a scenario's planted bugs: an enum, and what others call its variants.
///
/// ```
/// snaprig_campaign::canaries! {
///     /// Bugs that a sender can be told to have.
///     pub enum Bug {
///         /// It does not send again what was lost.
///         SendsOnce = "sends-once",
///     }
/// }
/// use snaprig_campaign::scenario::PlantedBug;
/// assert_eq!(Bug::ALL[0].1.name, "sends-once");
/// ```
#[macro_export]
macro_rules! canaries {
    (
        $(#[$doc:meta])* $visible:vis enum $bug:ident {
            $($(#[doc = $what:literal])+ $id:ident = $name:literal),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $bug {
            $($(#[doc = $what])+ $id),+
        }

        impl $crate::scenario::PlantedBug for $bug {
            const ALL: &'static [(Self, $crate::scenario::Canary)] = &[
                $((Self::$id, $crate::scenario::Canary {
                    name: $name,
                    what: concat!($($what),+),
                })),+
            ];
        }
    };
}
