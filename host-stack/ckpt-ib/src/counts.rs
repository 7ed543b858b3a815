//! How many messages, by whom they go to or come from. Of a connection that is one; datagrams have many, and go to one of them
//! several times in a row more often than not. So the one that was last is looked at first.

/// Counts, in order of what is counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts<K> {
    all: Vec<(K, u64)>,
    /// Where the last one was.
    last: usize,
}

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            last: 0,
        }
    }
}

impl<K: Ord + Copy> Counts<K> {
    fn find(&self, key: &K) -> Result<usize, usize> {
        self.all.binary_search_by(|(one, _)| one.cmp(key))
    }

    /// How many.
    pub fn of(&self, key: K) -> u64 {
        self.find(&key).map_or(0, |at| self.all[at].1)
    }

    /// That many more.
    #[inline]
    pub fn add(&mut self, key: K, more: u64) {
        match self.all.get_mut(self.last) {
            Some((last, count)) if *last == key => *count += more,
            _ => self.add_to_another(key, more),
        }
    }

    #[cold]
    fn add_to_another(&mut self, key: K, more: u64) {
        self.last = match self.find(&key) {
            Ok(at) => at,
            Err(at) => {
                self.all.insert(at, (key, 0));
                at
            }
        };
        self.all[self.last].1 += more;
    }

    /// One less, of those that there are.
    pub fn take_one(&mut self, key: K) {
        if let Ok(at) = self.find(&key) {
            self.all[at].1 = self.all[at].1.saturating_sub(1);
        }
    }

    /// None any more.
    pub fn remove(&mut self, key: K) {
        self.all.retain(|(one, _)| *one != key);
    }

    /// None of anybody.
    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (K, u64)> {
        self.all.iter().copied()
    }

    /// What was called otherwise.
    pub fn rename(&mut self, now: impl Fn(K) -> K) {
        let mut is_other = false;
        for (key, _) in &mut self.all {
            let renamed = now(*key);
            is_other |= *key != renamed;
            *key = renamed;
        }
        if is_other {
            for (key, count) in std::mem::take(self).all {
                self.add(key, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_counted(steps in proptest::collection::vec((0..5u8, 0..7u8), 0..100)) {
            let (mut counts, mut map) = (Counts::default(), BTreeMap::<u8, u64>::new());
            for (step, key) in steps {
                match step {
                    0 => {
                        counts.take_one(key);
                        map.entry(key).and_modify(|count| *count = count.saturating_sub(1));
                    }
                    1 => {
                        counts.remove(key);
                        map.remove(&key);
                    }
                    _ => {
                        counts.add(key, 1);
                        *map.entry(key).or_default() += 1;
                    }
                }
                prop_assert_eq!(counts.of(key), map.get(&key).copied().unwrap_or(0));
            }
            prop_assert!(counts.iter().eq(map.iter().map(|(key, count)| (*key, *count))));
            let mut halves = BTreeMap::<u8, u64>::new();
            map.iter().for_each(|(key, count)| *halves.entry(key / 2).or_default() += count);
            counts.rename(|key| key / 2);
            prop_assert!(counts.iter().eq(halves.into_iter()));
        }
    }
}
