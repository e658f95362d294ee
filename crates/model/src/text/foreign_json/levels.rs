//! The kinds of nested containers that are read and dropped, one bit each.

/// The most levels that are counted, far more than a recursive parser can read. They take 256 KiB.
pub(super) const LEVELS_LIMIT: usize = 2 * 1024 * 1024;

const WORD: usize = u64::BITS as usize;

/// A stack of bits. A kept container takes about 100 bytes, so without this stack a line of
/// brackets would need a hundred times its own length.
#[derive(Debug, Default)]
pub(super) struct Levels {
    /// A set bit is an array.
    arrays: Vec<u64>,
    count: usize,
    /// The outermost dropped container is kept as `null`.
    pub as_null: bool,
}

impl Levels {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Opens a container. Returns `false` if the limit is reached; the container is then not
    /// counted.
    #[must_use]
    pub fn push(&mut self, is_array: bool) -> bool {
        if self.count == LEVELS_LIMIT {
            return false;
        }
        let (word, bit) = (self.count / WORD, self.count % WORD);
        if word == self.arrays.len() {
            self.arrays.push(0);
        }
        self.arrays[word] &= !(1 << bit);
        self.arrays[word] |= u64::from(is_array) << bit;
        self.count += 1;
        true
    }

    /// Closes the innermost container.
    pub fn pop(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Returns whether the innermost container is an array; `None` without a container.
    pub fn is_array(&self) -> Option<bool> {
        let top = self.count.checked_sub(1)?;
        Some(self.arrays[top / WORD] >> (top % WORD) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_give_back_the_kinds_in_reverse_order() {
        let mut levels = Levels::default();
        let kinds: Vec<_> = (0..1000).map(|at| at % 3 == 0 || at % 7 == 2).collect();
        for _ in 0..2 {
            assert!(kinds.iter().all(|kind| levels.push(*kind)));
            for kind in kinds.iter().rev() {
                assert_eq!(levels.is_array(), Some(*kind));
                levels.pop();
            }
            assert!(levels.is_empty() && levels.is_array().is_none());
        }
    }

    #[test]
    fn a_level_takes_one_bit_and_their_number_is_limited() {
        let mut levels = Levels::default();
        assert!((0..LEVELS_LIMIT).all(|_| levels.push(true)));
        assert!(!levels.push(true) && levels.arrays.len() * WORD == LEVELS_LIMIT);
    }
}
