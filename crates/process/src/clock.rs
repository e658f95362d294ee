//! The clocks. Deadlines count awake time, because laptops sleep, and an agent that could not run
//! did not waste its time.

#![allow(unsafe_code)]

use std::time::Duration;

/// Returns the time since a fixed point during which this machine was awake.
pub fn awake() -> Duration {
    read(AWAKE)
}

/// Returns the time since such a point, including suspension. On hosts without such a clock it
/// equals [`awake`], and no suspension is ever detected.
pub fn boot() -> Duration {
    read(BOOT)
}

/// Returns milliseconds since 1970, for records that people read. Never use it for deadlines.
pub fn wall_ms() -> u64 {
    read(libc::CLOCK_REALTIME).as_millis() as u64
}

/// Returns when this machine was started, by the clock of file times. If that is unknown, the
/// result may be too late, but never later than now.
pub fn booted() -> std::time::SystemTime {
    let now = std::time::SystemTime::now();
    now.checked_sub(boot()).unwrap_or(std::time::SystemTime::UNIX_EPOCH)
}

/// Whether a file that was written at that time may have lost data when the machine went down.
pub fn is_before_boot(written: std::time::SystemTime) -> bool {
    written < booted()
}

/// [`awake`] in milliseconds.
pub fn awake_ms() -> u64 {
    awake().as_millis() as u64
}

#[cfg(target_os = "linux")]
const AWAKE: libc::clockid_t = libc::CLOCK_MONOTONIC;
#[cfg(target_os = "linux")]
const BOOT: libc::clockid_t = libc::CLOCK_BOOTTIME;
// On macOS CLOCK_MONOTONIC continues during sleep and CLOCK_UPTIME_RAW does not.
#[cfg(target_vendor = "apple")]
const AWAKE: libc::clockid_t = libc::CLOCK_UPTIME_RAW;
#[cfg(not(target_os = "linux"))]
const BOOT: libc::clockid_t = libc::CLOCK_MONOTONIC;
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
const AWAKE: libc::clockid_t = libc::CLOCK_MONOTONIC;

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to; an unknown clock leaves it untouched.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Detects suspensions of the machine by the difference of the two clocks.
#[derive(Debug)]
pub struct SuspendWatch {
    apart: Duration,
}

impl SuspendWatch {
    /// A shorter difference is jitter of reading two clocks.
    const LEAST: Duration = Duration::from_millis(500);

    pub fn new() -> Self {
        Self { apart: boot().saturating_sub(awake()) }
    }

    /// Returns how long the machine slept since the last call that returned a time.
    pub fn slept(&mut self) -> Option<Duration> {
        let apart = boot().saturating_sub(awake());
        let slept = apart.saturating_sub(self.apart);
        if slept < Self::LEAST {
            return None;
        }
        self.apart = apart;
        Some(slept)
    }
}

impl Default for SuspendWatch {
    fn default() -> Self {
        Self::new()
    }
}
