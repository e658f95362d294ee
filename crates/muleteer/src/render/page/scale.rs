//! Converts time to a length. Long pauses of a run are cut out, so that a night between two
//! sittings does not squash both.

use jiff::Timestamp;

/// A pause is cut if it is longer than this part of the active time, and longer than [`SHORTEST`].
const PART: f64 = 0.1;
const SHORTEST: f64 = 60_000.0;
/// The width of a cut pause, as a part of the whole.
const CUT: f64 = 0.012;
/// The maximum of cut pauses; more of them would leave no room to draw in.
const CUTS: usize = 20;

/// Maps points in time to a share of the width.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    /// The intervals that are drawn to scale: their start, their end, and their position in the
    /// picture.
    pieces: Vec<Piece>,
    length: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    from: f64,
    to: f64,
    at: f64,
}

/// A pause that was cut out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// The position, as a share of the width.
    pub at: f64,
    pub width: f64,
    pub millis: f64,
}

impl Scale {
    /// Builds the scale from the intervals in which something was under way.
    pub fn new(busy: &[(Timestamp, Timestamp)]) -> Self {
        let mut spans: Vec<(f64, f64)> =
            busy.iter().map(|(from, to)| (millis(*from), millis(*to).max(millis(*from)))).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut joined: Vec<(f64, f64)> = vec![];
        for (from, to) in spans {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        let active: f64 = joined.iter().map(|(from, to)| to - from).sum();
        let mut pauses: Vec<(f64, usize)> = joined
            .windows(2)
            .enumerate()
            .map(|(index, pair)| (pair[1].0 - pair[0].1, index))
            .collect();
        pauses.sort_by(|a, b| b.0.total_cmp(&a.0));
        let cut: Vec<usize> = pauses
            .into_iter()
            .take(CUTS)
            .filter(|(pause, _)| *pause > SHORTEST && *pause > active * PART)
            .map(|(_, index)| index)
            .collect();
        let mut kept: Vec<(f64, f64)> = vec![];
        for (index, (from, to)) in joined.iter().enumerate() {
            match kept.last_mut() {
                Some(last) if !cut.contains(&(index - 1)) => last.1 = *to,
                _ => kept.push((*from, *to)),
            }
        }
        let total: f64 = kept.iter().map(|(from, to)| to - from).sum::<f64>().max(1.0);
        let pause = total * CUT;
        let mut at = 0.0;
        let mut pieces = vec![];
        for (from, to) in kept {
            pieces.push(Piece { from, to, at });
            at += to - from + pause;
        }
        Self { length: (at - pause).max(1.0), pieces }
    }

    /// Returns the position of a point in time, from 0 to 1.
    pub fn at(&self, moment: Timestamp) -> f64 {
        let moment = millis(moment);
        let mut here = 0.0;
        for piece in &self.pieces {
            if moment < piece.from {
                break;
            }
            here = piece.at + moment.min(piece.to) - piece.from;
        }
        (here / self.length).clamp(0.0, 1.0)
    }

    pub fn cuts(&self) -> Vec<Cut> {
        let between = |pair: &[Piece]| {
            let end = pair[0].at + pair[0].to - pair[0].from;
            Cut {
                at: end / self.length,
                width: (pair[1].at - end) / self.length,
                millis: pair[1].from - pair[0].to,
            }
        };
        self.pieces.windows(2).map(between).collect()
    }

    /// Returns tick marks: the share of the width, and the active time until then in milliseconds.
    pub fn marks(&self) -> Vec<(f64, f64)> {
        const STEPS: [f64; 23] = [
            0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0,
            1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0, 604_800.0,
        ];
        let total: f64 = self.pieces.iter().map(|piece| piece.to - piece.from).sum();
        let step = STEPS
            .iter()
            .map(|step| step * 1000.0)
            .find(|step| total / step <= 10.0)
            .unwrap_or(total / 10.0);
        let mut marks = vec![];
        let mut passed = 0.0;
        let mut next = 0.0;
        for piece in &self.pieces {
            let length = piece.to - piece.from;
            while next <= passed + length && marks.len() < 12 {
                marks.push(((piece.at + next - passed) / self.length, next));
                next += step;
            }
            passed += length;
        }
        marks
    }
}

#[allow(clippy::cast_precision_loss)] // Timestamps around the present fit a float.
fn millis(at: Timestamp) -> f64 {
    at.as_millisecond() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(1_760_000_000 + second).expect("a time")
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 0.02
    }

    #[test]
    fn a_night_is_cut_out_and_a_breath_is_not() {
        let scale = Scale::new(&[
            (second(0), second(500)),
            (second(510), second(1000)),
            (second(30_000), second(31_000)),
        ]);
        assert!(
            near(scale.at(second(500)), 0.25) && near(scale.at(second(1000)), 0.5),
            "{scale:?}"
        );
        assert!(near(scale.at(second(30_000)), 0.5) && near(scale.at(second(31_000)), 1.0));
        // A time within a cut maps to the beginning of the cut.
        assert_eq!(scale.at(second(20_000)).to_bits(), scale.at(second(1000)).to_bits());
        let cuts = scale.cuts();
        assert!(cuts.len() == 1 && near(cuts[0].millis / 1000.0, 29_000.0), "{cuts:?}");
        let marks = scale.marks();
        assert!(marks.len() > 5 && marks.windows(2).all(|pair| pair[0].0 < pair[1].0), "{marks:?}");
    }

    #[test]
    fn empty_timeline_has_a_scale() {
        assert!(Scale::new(&[]).at(second(5)) < 0.01);
        let scale = Scale::new(&[(second(5), second(5)), (second(9), second(2))]);
        assert!((0.0..=1.0).contains(&scale.at(second(9))));
        assert!(!scale.marks().is_empty());
    }
}
