//! COIBufferWriteMultiD and COIBufferReadMultiD: arrays of up to three dimensions, as moves of runs of
//! bytes.

use snaprig_coi::ops::Piece;

use crate::{
    arguments::foreign,
    result::{Done, code, require},
    types::{Array, Dimension},
};

const RANK_MAX: i64 = 3;

/// Bytes that move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where in the buffer.
    at: u64,
    /// Where in the program's array, from its base.
    from_base: u64,
    bytes: u64,
}

/// The moves between an array at `offset` of a buffer of so many bytes, and one in memory, at `base`.
pub fn moves(
    in_buffer: &Array,
    in_memory: &Array,
    offset: u64,
    buffer_bytes: u64,
    base: i64,
) -> Done<Vec<Move>> {
    let ranks = [in_buffer.rank, in_memory.rank];
    require(
        ranks.iter().all(|rank| *rank <= RANK_MAX),
        code::NOT_SUPPORTED,
    )?;
    require(base != 0, code::INVALID_POINTER)?;
    require(ranks.iter().all(|rank| *rank >= 1), code::NOT_SUPPORTED)?;
    let (there, here) = (Elements::of(in_buffer)?, Elements::of(in_memory)?);
    let end = offset.checked_add(there.end).ok_or(code::OUT_OF_RANGE)?;
    require(end <= buffer_bytes, code::OUT_OF_RANGE)?;
    require(
        there.count == here.count && there.bytes == here.bytes,
        code::OUT_OF_RANGE,
    )?;
    let mut moves: Vec<Move> = Vec::new();
    for (at, from_base) in there.zip(here) {
        let (at, bytes) = (offset + at, there.bytes);
        match moves.last_mut() {
            Some(last)
                if last.at + last.bytes == at && last.from_base + last.bytes == from_base =>
            {
                last.bytes += bytes;
            }
            _ => moves.push(Move {
                at,
                from_base,
                bytes,
            }),
        }
    }
    Ok(moves)
}

/// The moves, of an array at `base`.
///
/// # Safety
/// The array that begins at `base` is there until all pieces are done, as far as the `moves` go.
pub unsafe fn pieces(moves: &[Move], base: i64) -> Vec<Piece> {
    let base = std::ptr::with_exposed_provenance_mut::<u8>(base as usize);
    moves
        .iter()
        .map(|run| Piece {
            at: run.at,
            // SAFETY: `moves` are runs within the array, which the caller says is there until the
            // pieces are done.
            memory: unsafe {
                foreign(
                    base.wrapping_add(run.from_base as usize),
                    run.bytes as usize,
                )
            },
        })
        .collect()
}

/// Where the elements of an array are, from its base, in order.
#[derive(Clone, Copy, Debug)]
struct Elements {
    /// From the outermost dimension to the innermost: where the first is, bytes from one to the next,
    /// how many.
    dimensions: [(u64, u64, u64); 3],
    next: u64,
    count: u64,
    /// Bytes of one.
    bytes: u64,
    /// Where the last one ends.
    end: u64,
}

impl Elements {
    fn of(array: &Array) -> Done<Self> {
        let rank = usize::try_from(array.rank).map_err(|_| code::NOT_SUPPORTED)?;
        let given = array.dimensions.get(..rank).ok_or(code::NOT_SUPPORTED)?;
        // Missing dimensions are of one element.
        let mut dimensions = [(0, 0, 1); 3];
        let mut all = Some((1_u64, 0_u64));
        for (place, dimension) in dimensions[3 - rank..].iter_mut().zip(given) {
            *place = one(dimension).ok_or(code::OUT_OF_RANGE)?;
            let (first, step, count) = *place;
            all = all.and_then(|(number, last)| {
                let reach = step.checked_mul(count - 1)?.checked_add(first)?;
                Some((number.checked_mul(count)?, last.checked_add(reach)?))
            });
        }
        let bytes = given
            .last()
            .map_or(0, |innermost| innermost.size.unsigned_abs());
        let (count, last) = all.ok_or(code::OUT_OF_RANGE)?;
        let end = last.checked_add(bytes).ok_or(code::OUT_OF_RANGE)?;
        let next = 0;
        Ok(Self {
            dimensions,
            next,
            count,
            bytes,
            end,
        })
    }
}

/// Where the first index of a dimension is, bytes from one to the next, and how many.
fn one(dimension: &Dimension) -> Option<(u64, u64, u64)> {
    let Dimension {
        size,
        first,
        lower,
        upper,
        stride,
    } = *dimension;
    if size < 1 || stride < 1 || first > lower || lower > upper {
        return None;
    }
    let (size, stride) = (size.unsigned_abs(), stride.unsigned_abs());
    let count = upper.checked_sub(lower)?.unsigned_abs() / stride + 1;
    let start = lower.checked_sub(first)?.unsigned_abs().checked_mul(size)?;
    Some((start, size.checked_mul(stride)?, count))
}

impl Iterator for Elements {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let mut number = (self.next < self.count).then_some(self.next)?;
        self.next += 1;
        let mut at = 0;
        for (first, step, count) in self.dimensions.iter().rev() {
            at += first + number % count * step;
            number /= count;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(size: i64, lower: i64, upper: i64, stride: i64) -> Dimension {
        Dimension {
            size,
            first: 0,
            lower,
            upper,
            stride,
        }
    }

    fn array(dimensions: &[Dimension]) -> Array {
        let mut all = [dimension(0, 0, 0, 0); 3];
        all[..dimensions.len()].copy_from_slice(dimensions);
        Array {
            base: 0x1000,
            rank: dimensions.len() as i64,
            dimensions: all,
        }
    }

    fn run(at: u64, from_base: u64, bytes: u64) -> Move {
        Move {
            at,
            from_base,
            bytes,
        }
    }

    #[test]
    fn elements_that_follow_each_other_move_together() {
        let line = array(&[dimension(4, 0, 9, 1)]);
        assert_eq!(moves(&line, &line, 8, 48, 1), Ok(vec![run(8, 0, 40)]));
    }

    #[test]
    fn a_part_of_a_matrix_goes_row_by_row() {
        // Rows 1 and 2, columns 2 to 3, of a matrix of 4 by 5 numbers of 4 bytes; to a line.
        let part = array(&[dimension(20, 1, 2, 1), dimension(4, 2, 3, 1)]);
        let line = array(&[dimension(4, 0, 3, 1)]);
        let expected = Ok(vec![run(0, 28, 8), run(8, 48, 8)]);
        assert_eq!(moves(&line, &part, 0, 16, 1), expected);
    }

    #[test]
    fn every_second_element() {
        let second = array(&[dimension(1, 0, 4, 2)]);
        let line = array(&[dimension(1, 0, 2, 1)]);
        let expected = Ok(vec![run(0, 0, 1), run(2, 1, 1), run(4, 2, 1)]);
        assert_eq!(moves(&second, &line, 0, 5, 1), expected);
    }

    #[test]
    fn indices_count_from_the_first_that_there_is() {
        let mut fortran = dimension(8, 2, 3, 1);
        fortran.first = 1;
        let line = array(&[dimension(8, 0, 1, 1)]);
        assert_eq!(
            moves(&line, &array(&[fortran]), 0, 16, 1),
            Ok(vec![run(0, 8, 16)])
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |a: &Array, b: &Array| moves(a, b, 0, 64, b.base).map_err(|f| f.code);
        let line = array(&[dimension(4, 0, 9, 1)]);
        let of = |dimension| array(&[dimension]);
        let cases = [
            (of(dimension(4, 0, 8, 1)), code::OUT_OF_RANGE),
            (of(dimension(4, 5, 4, 1)), code::OUT_OF_RANGE),
            (of(dimension(4, 0, 9, 0)), code::OUT_OF_RANGE),
            (of(dimension(0, 0, 9, 1)), code::OUT_OF_RANGE),
            (of(dimension(i64::MAX, 0, 9, 1)), code::OUT_OF_RANGE),
            (of(dimension(4, i64::MIN, i64::MAX, 1)), code::OUT_OF_RANGE),
            (of(dimension(8, 0, 9, 1)), code::OUT_OF_RANGE),
            (Array { rank: 4, ..line }, code::NOT_SUPPORTED),
            (Array { rank: 0, ..line }, code::NOT_SUPPORTED),
            (Array { rank: -1, ..line }, code::NOT_SUPPORTED),
            (Array { base: 0, ..line }, code::INVALID_POINTER),
        ];
        for (other, code) in cases {
            assert_eq!(refused(&line, &other), Err(code), "{other:?}");
        }
        assert_eq!(
            moves(&line, &line, 32, 64, 1).map_err(|f| f.code),
            Err(code::OUT_OF_RANGE)
        );
    }
}
