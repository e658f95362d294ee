//! Detects the service manager and queries our unit.

use crate::doctor::ask::run;
use crate::service::{LABEL, Manager, Scope, UNIT};
use muleteer_model::doctor::ServiceFacts;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(5);

/// The manager's report about the loaded unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnitState {
    /// `active`, `inactive`, `failed`, `activating`, …
    pub active: String,
    /// `running`, `dead`, …
    pub sub: String,
    pub enabled: bool,
    pub pid: Option<u32>,
    /// The status text that the daemon reported (`STATUS=`).
    pub text: Option<String>,
}

impl UnitState {
    pub fn is_active(&self) -> bool {
        matches!(self.active.as_str(), "active" | "reloading" | "activating")
    }
}

/// Returns whether the manager runs this machine; installed programs alone do not count.
pub fn runs(manager: Manager) -> bool {
    match manager {
        Manager::Systemd => Path::new("/run/systemd/system").is_dir(),
        Manager::Launchd => cfg!(target_os = "macos"),
    }
}

/// Queries the unit; `None` if the manager has no such unit.
pub async fn unit(manager: Manager, scope: Scope) -> Option<UnitState> {
    match manager {
        Manager::Systemd => {
            let scope = if scope == Scope::User { "--user" } else { "--system" };
            let properties =
                "--property=LoadState,ActiveState,SubState,UnitFileState,MainPID,StatusText";
            let said = run(&find("systemctl")?, &[scope, "show", UNIT, properties], DEADLINE)
                .await
                .ok()?;
            systemd(&said)
        }
        Manager::Launchd => {
            let said = run(&find("launchctl")?, &["list", LABEL], DEADLINE).await.ok()?;
            Some(launchd(&said))
        }
    }
}

/// Parses `systemctl show`: lines of KEY=VALUE in any order.
fn systemd(said: &str) -> Option<UnitState> {
    let value = |key: &str| {
        said.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_default()
    };
    (value("LoadState") == "loaded").then(|| UnitState {
        active: value("ActiveState").into(),
        sub: value("SubState").into(),
        enabled: value("UnitFileState") == "enabled",
        pid: value("MainPID").parse().ok().filter(|pid| *pid != 0),
        text: Some(value("StatusText").to_string()).filter(|text| !text.is_empty()),
    })
}

/// Parses `launchctl list LABEL`: a dictionary in an old notation, with `"PID" = 4711;` while the
/// job runs.
fn launchd(said: &str) -> UnitState {
    let pid = said.lines().find_map(|line| {
        let value = line.trim().strip_prefix("\"PID\" = ")?;
        value.trim_end_matches(';').parse().ok()
    });
    let (active, sub) = if pid.is_some() { ("active", "running") } else { ("inactive", "dead") };
    UnitState { active: active.into(), sub: sub.into(), enabled: true, pid, text: None }
}

/// Returns the facts for `doctor`.
pub async fn facts() -> ServiceFacts {
    let manager = Manager::of_host();
    if !runs(manager) {
        return ServiceFacts::None;
    }
    let mut found = unit(manager, Scope::User).await;
    if found.is_none() {
        found = unit(manager, Scope::System).await;
    }
    if manager == Manager::Launchd {
        return ServiceFacts::Launchd { loaded: found.is_some() };
    }
    let user = std::env::var("USER").unwrap_or_default();
    let linger = Path::new("/var/lib/systemd/linger").join(&user).exists();
    ServiceFacts::Systemd { user, linger, unit: found.map(|unit| unit.active) }
}

pub fn find(program: &str) -> Option<PathBuf> {
    muleteer_backends::find_program(program, std::env::var_os("PATH").as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_state_is_parsed() {
        let said = "MainPID=42\nLoadState=loaded\nActiveState=active\nSubState=running\n\
            UnitFileState=enabled\nStatusText=3 agents run\n";
        let state = systemd(said).expect("loaded");
        assert_eq!(
            (state.pid, state.enabled, state.text.as_deref()),
            (Some(42), true, Some("3 agents run"))
        );
        assert!(state.is_active());
        assert_eq!(systemd("LoadState=not-found\nActiveState=inactive\n"), None);
        let dead = systemd("LoadState=loaded\nActiveState=failed\nMainPID=0\n").expect("loaded");
        assert!(!dead.is_active() && dead.pid.is_none() && dead.text.is_none());
    }

    #[test]
    fn launchd_state_is_parsed() {
        let running = "{\n\t\"Label\" = \"dev.muleteer.daemon\";\n\t\"PID\" = 4711;\n};\n";
        assert_eq!(launchd(running).pid, Some(4711));
        assert!(!launchd("{\n\t\"LastExitStatus\" = 0;\n};\n").is_active());
    }
}
