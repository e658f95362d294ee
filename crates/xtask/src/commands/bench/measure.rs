//! Measures in turns, and computes medians.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};
use xtask::Failure;

/// The way to read a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// Our median divided by the floor's median.
    Ratio,
    /// Our median, in this unit.
    Absolute(&'static str),
}

/// The measured values: milliseconds, or the unit of an absolute figure.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    pub ours: Vec<f64>,
    pub floor: Vec<f64>,
    /// The peers' values by name, for peers on PATH that can do the same work.
    pub peers: BTreeMap<String, Vec<f64>>,
    pub note: Option<String>,
    /// The percentile that is printed beside the median, if the row has a goal for one.
    pub percentile: Option<u8>,
    /// The daemon's processor time for each agent that it started, in milliseconds.
    pub daemon_ms: Option<f64>,
}

impl Samples {
    pub fn absolute(ours: Vec<f64>) -> Self {
        Self { ours, ..Self::default() }
    }

    /// Returns the figure that gate and ambition are about.
    pub fn figure(&self, judged: Judged) -> Option<f64> {
        let ours = median(&self.ours)?;
        match judged {
            Judged::Ratio => {
                median(&self.floor).filter(|floor| *floor > 0.0).map(|floor| ours / floor)
            }
            Judged::Absolute(_) => Some(ours),
        }
    }
}

/// Returns the median: half of the values are below it, half above.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the smallest value that is at least as large as this part of all values.
pub fn percentile(values: &[f64], percent: u8) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * usize::from(percent)).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// A measurement that can be repeated and returns milliseconds.
pub type Subject<'a> = Box<dyn FnMut() -> Result<f64, Failure> + 'a>;

/// Measures the floor, ours and each peer in turns, so that other load of the machine affects all
/// of them. The first round warms caches and does not count.
///
/// # Errors
/// When the floor or ours fails. A peer that fails is left out, with a note on stderr.
pub fn in_turns(
    rounds: usize,
    mut floor: Subject<'_>,
    mut ours: Subject<'_>,
    peers: Vec<(String, Subject<'_>)>,
) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    let mut peers: Vec<_> =
        peers.into_iter().map(|(name, subject)| (name, Some(subject))).collect();
    for round in 0..=rounds {
        let counted = round > 0;
        let (of_floor, of_ours) = (floor()?, ours()?);
        if counted {
            samples.floor.push(of_floor);
            samples.ours.push(of_ours);
        }
        for (name, slot) in &mut peers {
            let Some(subject) = slot else { continue };
            match subject() {
                Ok(value) if counted => samples.peers.entry(name.clone()).or_default().push(value),
                Ok(_) => {}
                Err(failure) => {
                    eprintln!("xtask: {name} is left out: {failure}");
                    samples.peers.remove(name);
                    *slot = None;
                }
            }
        }
    }
    Ok(samples)
}

/// Runs a probe, which measures by itself and prints a line `floor_us ours_us` for each round. A
/// floor of 0 means that there is none.
///
/// # Errors
/// The probe's stderr when it fails.
pub fn probed(command: &mut Command) -> Result<Samples, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let mut samples = Samples::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut numbers = line.split(' ').filter_map(|word| word.parse::<f64>().ok());
        if let (Some(floor), Some(ours)) = (numbers.next(), numbers.next()) {
            samples.floor.extend((floor > 0.0).then_some(floor / 1000.0));
            samples.ours.push(ours / 1000.0);
        }
    }
    Ok(samples)
}

pub fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// Runs `work` and returns its result with its duration.
///
/// # Errors
/// The errors of `work`.
pub fn timed<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<(T, f64), Failure> {
    let begun = Instant::now();
    let value = work()?;
    Ok((value, ms(begun.elapsed())))
}

/// Polls until there is an answer.
///
/// # Errors
/// When there is none within the time.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Option<T>,
) -> Result<T, Failure> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if begun.elapsed() > limit {
            return Err(format!("{what}: not within {} s", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        assert_eq!(
            [median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])],
            [None, Some(2.0), Some(2.5)]
        );
        let samples = Samples { ours: vec![3.0, 9.0, 3.0], floor: vec![2.0], ..Samples::default() };
        assert_eq!(samples.figure(Judged::Ratio), Some(1.5));
        assert_eq!(samples.figure(Judged::Absolute("KB")), Some(3.0));
        assert_eq!(Samples::absolute(vec![1.0]).figure(Judged::Ratio), None);
    }

    #[test]
    fn percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(
            [percentile(&values, 99), percentile(&values, 95), percentile(&values[..3], 95)],
            [Some(198.0), Some(190.0), Some(200.0)]
        );
        assert_eq!([percentile(&[], 99), percentile(&[4.0], 1)], [None, Some(4.0)]);
    }

    #[test]
    fn rounds_alternate_and_failed_peers_are_skipped() {
        let order = std::cell::RefCell::new(String::new());
        let subject = |name: char| -> Subject<'_> {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(name);
                if name == 'x' { Err("broken".into()) } else { Ok(1.0) }
            })
        };
        let peers = vec![("p".to_string(), subject('p')), ("x".to_string(), subject('x'))];
        let samples = in_turns(2, subject('f'), subject('o'), peers).expect("samples");
        assert_eq!(*order.borrow(), "fopxfopfop");
        assert_eq!((samples.floor.len(), samples.ours.len(), samples.peers.len()), (2, 2, 1));
    }
}
