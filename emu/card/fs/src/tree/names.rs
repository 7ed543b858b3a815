//! The names in a directory, in an order that a reader can hold on to: each has a cookie, made of
//! the name itself, that stays while other names come and go, and is the same on another card.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use xxhash_rust::xxh3::xxh3_64;

/// Cookies below are for the start of a directory, `.` and `..`.
pub const FIRST_COOKIE: u64 = 3;

/// Names and their nodes.
#[derive(Default)]
pub struct Names {
    /// Node and cookie of each name.
    entries: BTreeMap<Arc<str>, (u64, u64)>,
    by_cookie: BTreeMap<u64, Arc<str>>,
}

impl Names {
    /// The node of a name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.entries.get(name).map(|(node, _)| *node)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a name, or gives one another node.
    pub fn insert(&mut self, name: &str, node: u64) {
        if let Some((old, _)) = self.entries.get_mut(name) {
            *old = node;
            return;
        }
        // A cookie is an `off_t`, so it is positive; two names hardly ever want the same.
        let mut cookie = (xxh3_64(name.as_bytes()) >> 2).max(FIRST_COOKIE);
        while self.by_cookie.contains_key(&cookie) {
            cookie += 1;
        }
        let name: Arc<str> = name.into();
        self.by_cookie.insert(cookie, name.clone());
        self.entries.insert(name, (node, cookie));
    }

    /// Takes a name away; returns its node.
    pub fn remove(&mut self, name: &str) -> Option<u64> {
        let (node, cookie) = self.entries.remove(name)?;
        self.by_cookie.remove(&cookie);
        Some(node)
    }

    /// A name of the node.
    pub fn name_of(&self, node: u64) -> Option<&str> {
        let mut entries = self.entries.iter();
        let (name, _) = entries.find(|(_, (other, _))| *other == node)?;
        Some(name)
    }

    /// Cookie, name and node of each name after a cookie.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &str, u64)> {
        self.by_cookie
            .range((Bound::Excluded(cookie), Bound::Unbounded))
            .filter_map(|(cookie, name)| Some((*cookie, &**name, self.get(name)?)))
    }
}
