//! Work on all processors while a tree stands still.

use std::{ops::Range, panic, thread};

/// Threads at most: more than that wait for the memory.
const THREADS_MAX: usize = 4;

/// How many threads there may be.
pub fn threads() -> usize {
    thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX)
}

/// Does all of it, each with a thread of its own but for the first; what came of it, in order.
pub fn each<W: Send, T: Send>(
    work: impl IntoIterator<Item = W>,
    done_by: impl Fn(W) -> T + Sync,
) -> Vec<T> {
    let (mut work, done_by) = (work.into_iter(), &done_by);
    let Some(first) = work.next() else {
        return Vec::new();
    };
    thread::scope(|scope| {
        let others: Vec<_> = work.map(|one| scope.spawn(move || done_by(one))).collect();
        let mut done = vec![done_by(first)];
        let ended = others.into_iter().map(|other| other.join());
        done.extend(ended.map(|one| one.unwrap_or_else(|panic| panic::resume_unwind(panic))));
        done
    })
}

/// Divides a part among all threads, at multiples of `at`, but into none of less than `least` bytes.
pub fn split(part: Range<u64>, least: u64, at: u64) -> Vec<Range<u64>> {
    let bytes = part.end.saturating_sub(part.start);
    let pieces = (bytes / least).clamp(1, threads() as u64);
    let piece = (bytes / pieces).next_multiple_of(at);
    let mut ends: Vec<_> = (1..pieces)
        .map(|index| ((part.start + index * piece) / at * at).min(part.end))
        .collect();
    ends.push(part.end);
    let starts = [part.start].into_iter().chain(ends.clone());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_the_whole_in_order(start in 0..1000u64, bytes in 0..5000u64, least in 64..1000u64) {
            let part = start..start + bytes;
            let pieces = split(part.clone(), least, 16);
            prop_assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (part.start, part.end));
            prop_assert!(pieces.windows(2).all(|two| two[0].end == two[1].start && two[0].end % 16 == 0));
            prop_assert!(pieces.iter().all(|piece| piece.start <= piece.end));
        }
    }

    #[test]
    fn what_comes_of_work_is_in_order() {
        assert_eq!(
            each(0..9, |one| one * one),
            (0..9).map(|one| one * one).collect::<Vec<_>>()
        );
        assert!(each([0; 0], |one: i32| one).is_empty());
    }
}
