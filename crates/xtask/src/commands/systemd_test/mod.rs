//! `cargo xtask systemd-test`: tests the service units under a real systemd.
//!
//! systemd boots in `systemd-nspawn`, over an overlay of this machine's `/` whose upper layer is in
//! memory, so nothing of it stays. A driver inside installs the service and tries everything that a
//! service has to bear. Its only output is a line for each check.
//!
//! It needs root, Debian's `systemd-container`, and the right to mount. If one is missing it
//! reports a skip, which is no failure (`--require` makes it one).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use xtask::{Failure, binaries, workspace};

const DRIVER: &str = include_str!("driver.sh");
/// The time limit: booting takes five seconds on a quiet machine; the checks wait for systemd's own
/// time limits.
const DEADLINE: Duration = Duration::from_secs(420);
/// The driver's last line. Without it the machine ended early.
const LAST: &str = "done";

const DRIVER_UNIT: &str = "\
[Unit]
Description=Checks of muleteer's service
After=basic.target systemd-user-sessions.service
[Service]
Type=simple
ExecStart=/systemd-test/driver.sh
ExecStopPost=/bin/systemctl poweroff --force
StandardOutput=append:/systemd-test/output
StandardError=append:/systemd-test/output
";

const TARGET: &str = "\
[Unit]
Requires=basic.target muleteer-driver.service
After=basic.target
AllowIsolate=yes
";

pub fn run(args: &[String]) -> Result<(), Failure> {
    let require = match args {
        [] => false,
        [flag] if flag == "--require" => true,
        _ => return Err("systemd-test takes only --require".into()),
    };
    if let Some(why) = missing() {
        if require {
            return Err(format!("systemd-test cannot run here: {why}").into());
        }
        eprintln!("SKIPPED: systemd-test: {why}");
        return Ok(());
    }
    // As `cargo xtask test` builds them: after it, nothing is left to compile.
    let bin = binaries::build_workspace()?;
    let machine = match Machine::make(&bin) {
        Err(failure) if !require => {
            eprintln!("SKIPPED: systemd-test: no overlay can be mounted here: {failure}");
            return Ok(());
        }
        made => made?,
    };
    machine.boot()?;
    machine.verdict()
}

fn missing() -> Option<String> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !is_root {
        return Some("it wants root, to mount and to boot a container".into());
    }
    for (program, package) in
        [("systemd-nspawn", "systemd-container"), ("mount", "mount"), ("systemctl", "systemd")]
    {
        let there = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !there.is_ok_and(|status| status.success()) {
            return Some(format!("no {program}: apt-get install {package}"));
        }
    }
    None
}

/// A root directory made from this machine's own. Dropping it unmounts and removes it.
struct Machine {
    base: PathBuf,
    mounts: Vec<PathBuf>,
}

impl Machine {
    fn make(bin: &Path) -> Result<Self, Failure> {
        let base = std::env::temp_dir().join(format!("muleteer-systemd-{}", std::process::id()));
        fs::create_dir(&base)?;
        let mut machine = Self { base: base.clone(), mounts: vec![] };
        machine.mount(&["-t", "tmpfs", "tmpfs"], &base)?;
        for name in ["upper", "work", "root"] {
            fs::create_dir(base.join(name))?;
        }
        machine.furnish(bin)?;
        let layers = format!("lowerdir=/,upperdir={0}/upper,workdir={0}/work", base.display());
        machine.mount(&["-t", "overlay", "overlay", "-o", &layers], &base.join("root"))?;
        Ok(machine)
    }

    fn mount(&mut self, words: &[&str], place: &Path) -> Result<(), Failure> {
        workspace::run(Command::new("mount").args(words).arg(place))?;
        self.mounts.push(place.to_path_buf());
        Ok(())
    }

    /// Adds the binaries, the driver, and a target that starts it to the machine.
    fn furnish(&self, bin: &Path) -> Result<(), Failure> {
        let upper = self.base.join("upper");
        let write = |name: &str, text: &str, mode: u32| -> Result<(), Failure> {
            let path = upper.join(name);
            fs::create_dir_all(path.parent().ok_or("no parent")?)?;
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            Ok(())
        };
        write("systemd-test/driver.sh", DRIVER, 0o755)?;
        write("etc/systemd/system/muleteer-driver.service", DRIVER_UNIT, 0o644)?;
        write("etc/systemd/system/muleteer-test.target", TARGET, 0o644)?;
        fs::create_dir_all(upper.join("usr/local/bin"))?;
        for name in ["muleteer", "muleteer-shim"] {
            fs::copy(bin.join(name), upper.join("usr/local/bin").join(name))?;
        }
        Ok(())
    }

    fn boot(&self) -> Result<(), Failure> {
        let console = fs::File::create(self.base.join("console"))?;
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args([
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--private-network",
            "--link-journal=no",
        ]);
        nspawn
            .arg("-D")
            .arg(self.base.join("root"))
            .args(["--boot", "systemd.unit=muleteer-test.target"]);
        nspawn.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        nspawn.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        eprintln!("xtask: {}", workspace::said(&nspawn));
        let mut child = nspawn.spawn()?;
        let begun = Instant::now();
        loop {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            if begun.elapsed() > DEADLINE {
                child.kill()?;
                child.wait()?;
                eprintln!("xtask: the machine did not power off within {} s", DEADLINE.as_secs());
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn verdict(&self) -> Result<(), Failure> {
        let result =
            fs::read_to_string(self.base.join("upper/systemd-test/result")).unwrap_or_default();
        print!("{result}");
        let failed = result.lines().filter(|line| line.starts_with("FAIL")).count();
        let passed = result.lines().filter(|line| line.starts_with("ok")).count();
        if failed == 0 && passed > 0 && result.lines().last() == Some(LAST) {
            println!("systemd-test: {passed} checks hold");
            return Ok(());
        }
        for name in ["upper/systemd-test/output", "console"] {
            let text = fs::read(self.base.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            eprintln!(
                "--- the end of {name}\n{}",
                lines[lines.len().saturating_sub(80)..].join("\n")
            );
        }
        Err(format!("systemd-test: {failed} checks failed, {passed} hold").into())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for place in self.mounts.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(place).status();
        }
        let _ = fs::remove_dir(&self.base);
    }
}
