//! Kinds of damage to a file, chosen by a seed.

use crate::crash::Dice;
use std::fs;
use std::path::{Path, PathBuf};

/// The damage of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// One bit of the byte at this position is inverted.
    Flipped {
        at: u64,
        bit: u8,
    },
    /// The last bytes are gone, so many.
    Cut(u64),
    /// Zeros are in the place of the bytes of this range.
    Hole {
        from: u64,
        to: u64,
    },
    Emptied,
    Removed,
    /// It has the content of this file, and that file has its content.
    Swapped(PathBuf),
}

impl Damage {
    /// Chooses the damage of a file with content; `others` are the files that it can be swapped
    /// with. Without `in_part` the whole file is damaged.
    ///
    /// # Panics
    /// When the file cannot be read.
    pub fn choose(dice: &mut Dice, file: &Path, others: &[PathBuf], in_part: bool) -> Self {
        let bytes = fs::read(file).expect("the file is there");
        let length = bytes.len() as u64;
        match if in_part { dice.below(8) } else { 3 + dice.below(3) } {
            0 | 1 => Self::Cut(1 + dice.below(length)),
            2 => {
                let from = dice.below(length);
                // A hole of bytes that are zero would change nothing.
                let from = (from..length).find(|at| bytes[usize_of(*at)] != 0).unwrap_or(0);
                Self::Hole { from, to: from + 1 + dice.below(length - from) }
            }
            3 => Self::Emptied,
            4 => Self::Removed,
            5 if !others.is_empty() => {
                let at = usize_of(dice.below(others.len() as u64));
                Self::Swapped(others[at].clone())
            }
            _ if !in_part => Self::Removed,
            _ => Self::Flipped {
                at: dice.below(length),
                bit: u8::try_from(dice.below(8)).unwrap_or(0),
            },
        }
    }

    /// # Panics
    /// When a file cannot be changed.
    pub fn inflict(&self, file: &Path) {
        let bytes = || fs::read(file).expect("the file is there");
        match self {
            Self::Flipped { at, bit } => {
                let mut bytes = bytes();
                bytes[usize_of(*at)] ^= 1 << bit;
                write(file, &bytes);
            }
            Self::Cut(count) => {
                let mut bytes = bytes();
                bytes.truncate(bytes.len() - usize_of(*count));
                write(file, &bytes);
            }
            Self::Hole { from, to } => {
                let mut bytes = bytes();
                bytes[usize_of(*from)..usize_of(*to)].fill(0);
                write(file, &bytes);
            }
            Self::Emptied => write(file, b""),
            Self::Removed => fs::remove_file(file).expect("the file is there"),
            Self::Swapped(other) => {
                let (own, others) = (bytes(), fs::read(other).expect("the other is there"));
                write(file, &others);
                write(other, &own);
            }
        }
    }
}

fn write(file: &Path, bytes: &[u8]) {
    fs::write(file, bytes).expect("the file can be written");
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).expect("a file of a test is short")
}
