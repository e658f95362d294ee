//! Runs the same work with other supervisors, if they are on PATH.
//!
//! Each supervisor has its services written down before the clock starts. The clock runs from the
//! supervisor's start to the last service's `main`, because none of them takes requests as we do.

use super::measure::Subject;
use super::place::Place;
use super::rows::start::since;
use rustix::time::{ClockId, clock_gettime};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use xtask::Failure;

/// The known peers, so that a table can name the missing ones.
pub const KNOWN: [(&str, &str); 5] = [
    ("runit", "runsvdir"),
    ("s6", "s6-svscan"),
    ("supervisord", "supervisord"),
    ("pm2", "pm2"),
    ("pueue", "pueued"),
];

/// The least count to compare: with fewer programs a supervisor's own start dominates.
const ENOUGH: usize = 50;

/// Returns the peers that are on PATH.
pub fn found() -> Vec<&'static str> {
    KNOWN.iter().filter(|(_, program)| has(program)).map(|(name, _)| *name).collect()
}

/// Returns whether a program is on PATH.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the peers that can start `count` programs at once.
pub fn starting<'a>(
    place: &'a Place,
    stamp: &'a Path,
    file: &'a Path,
    count: usize,
) -> Vec<(String, Subject<'a>)> {
    if count < ENOUGH {
        return vec![];
    }
    let recipes: [(&'static str, Recipe); 5] = [
        ("runit", runit),
        ("s6", s6),
        ("supervisord", supervisord),
        ("pm2", pm2),
        ("pueue", pueue),
    ];
    let found = found();
    let of = |(name, recipe): (&'static str, Recipe)| {
        let mut round = 0;
        let subject: Subject<'a> = Box::new(move || {
            round += 1;
            start(recipe, &place.path(&format!("{name}-{round}")), stamp, file, count)
        });
        (name.to_string(), subject)
    };
    recipes.into_iter().filter(|(name, _)| found.contains(name)).map(of).collect()
}

/// Writes the services down and returns the command that runs them all.
type Recipe = fn(&Path, &str, usize) -> Result<Command, Failure>;

fn start(
    recipe: Recipe,
    dir: &Path,
    stamp: &Path,
    file: &Path,
    count: usize,
) -> Result<f64, Failure> {
    let _ = std::fs::remove_file(file);
    std::fs::create_dir_all(dir)?;
    let script = format!("{} {}; exec sleep 100000", stamp.display(), file.display());
    let mut command = recipe(dir, &script, count)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = now();
    let supervisor = Running(command.spawn()?, dir.to_path_buf());
    let taken = since(file, begun, count);
    drop(supervisor);
    taken
}

/// Returns the monotonic clock in nanoseconds, as the probes stamp it.
pub fn now() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// A running supervisor. Dropping it ends it, and every process whose working directory is its
/// directory.
struct Running(Child, PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        // The children lose their supervisor first, and their services then. It repeats, because
        // one may start the other.
        for _ in 0..3 {
            let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            for entry in entries {
                let stands = std::fs::read_link(entry.path().join("cwd"))
                    .is_ok_and(|cwd| cwd.starts_with(&self.1));
                let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw).filter(|_| stands) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
    }
}

/// Makes a directory for each service with an executable `run`, as runit and s6 both need it.
fn service_dirs(dir: &Path, script: &str, count: usize) -> Result<(), Failure> {
    for number in 0..count {
        let service = dir.join(format!("s{number}"));
        std::fs::create_dir(&service)?;
        let run = service.join("run");
        std::fs::write(&run, format!("#!/bin/sh\n{script}\n"))?;
        std::fs::set_permissions(run, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn runit(dir: &Path, script: &str, count: usize) -> Result<Command, Failure> {
    service_dirs(dir, script, count)?;
    let mut command = Command::new("runsvdir");
    command.arg(dir).current_dir(dir);
    Ok(command)
}

fn s6(dir: &Path, script: &str, count: usize) -> Result<Command, Failure> {
    service_dirs(dir, script, count)?;
    let mut command = Command::new("s6-svscan");
    command.arg("-c").arg((count * 2).to_string()).arg(dir).current_dir(dir);
    Ok(command)
}

fn supervisord(dir: &Path, script: &str, count: usize) -> Result<Command, Failure> {
    let mut text = format!(
        "[supervisord]\nnodaemon=true\nlogfile={0}/log\npidfile={0}/pid\nminfds=4096\n",
        dir.display()
    );
    for number in 0..count {
        text.push_str(&format!(
            "[program:s{number}]\ncommand=sh -c '{script}'\ndirectory={}\n",
            dir.display()
        ));
    }
    let file = dir.join("supervisord.conf");
    std::fs::write(&file, text)?;
    let mut command = Command::new("supervisord");
    command.arg("-c").arg(file).current_dir(dir);
    Ok(command)
}

/// Writes the services of pm2. Its daemon goes to the background, but stays in the directory.
fn pm2(dir: &Path, script: &str, count: usize) -> Result<Command, Failure> {
    let app = |number| {
        serde_json::json!({
            "name": format!("s{number}"), "script": "/bin/sh", "args": ["-c", script],
            "interpreter": "none", "cwd": dir,
        })
    };
    let apps: Vec<_> = (0..count).map(app).collect();
    let file = dir.join("pm2.config.json");
    std::fs::write(&file, serde_json::json!({ "apps": apps }).to_string())?;
    let mut command = Command::new("pm2");
    command.arg("start").arg(file).env("PM2_HOME", dir.join("pm2")).current_dir(dir);
    Ok(command)
}

/// Writes a script for pueue, which takes its tasks one by one from clients and knows no list of
/// services.
fn pueue(dir: &Path, script: &str, count: usize) -> Result<Command, Failure> {
    let file = dir.join("pueue.yml");
    let own = |name: &str| dir.join(name).display().to_string();
    let settings = serde_json::json!({
        "shared": {
            "pueue_directory": dir, "runtime_directory": dir, "use_unix_socket": true,
            "unix_socket_path": own("pueue.sock"),
        },
        "client": {}, "daemon": {}, "profiles": {},
    });
    std::fs::write(&file, settings.to_string())?;
    let all = format!(
        "client() {{ pueue -c {0} \"$@\" >/dev/null 2>&1; }}; pueued -c {0} & until client status; \
         do :; done; \
         client parallel {count}; for at in $(seq {count}); do client add -- '{script}'; done; \
         wait",
        file.display()
    );
    let mut command = Command::new("sh");
    command.arg("-c").arg(all).current_dir(dir);
    Ok(command)
}
