//! A process that is being restarted, as this crate makes it what it was.

use std::ops::Deref;

use snaprig_resources::growing::Growing;

/// What all kinds of state know of it, and more that can be done to it here.
pub struct Rebuilding<'a>(pub Growing<'a>);

impl<'a> Deref for Rebuilding<'a> {
    type Target = Growing<'a>;

    fn deref(&self) -> &Growing<'a> {
        &self.0
    }
}
